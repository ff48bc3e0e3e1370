#include "core/tokenizer/tokenizer_module.h"

#include "core/modules/module.h"

namespace orthant {

const TokenizerModule& tokenizer_module() {
  static const ModulePtr<TokenizerModule> opened = create<TokenizerModule>(find_module("module", "tokenizer"));
  return *opened;
}

std::shared_ptr<const ModelTemplate> ModelTemplate::of(const TextRules& rules, const Tokenizer& tokenizer) {
  const bool none = rules.chat_template.empty() && tokenizer.files().empty();
  return none ? nullptr : tokenizer_module().model_template(rules, tokenizer);
}

}  // namespace orthant
