// The entry of the module: core/tokenizer/tokenizer_module.h.
#include "core/modules/tree_note.h"
#include "core/tokenizer/tokenizer_module.h"
#include "plugins/tokenizer/chat/chat_rules.h"
#include "plugins/tokenizer/chat/chat_template.h"
#include "plugins/tokenizer/chat/jinja_template.h"
#include "plugins/tokenizer/chat/lines_source.h"
#include "plugins/tokenizer/hugging_face_files.h"
#include "plugins/tokenizer/published_tokenizer.h"
#include "plugins/tokenizer/train_tokenizer.h"

namespace orthant {
namespace {

class OwnTokenizerModule final : public TokenizerModule {
 public:
  std::shared_ptr<const Tokenizer> make(const std::string& name, std::vector<TokenizerFile> files) const override {
    return make_published_tokenizer(name, std::move(files));
  }
  std::string train(const TrainTokenizerOptions& options,
                    const std::function<bool(std::string&)>& next) const override {
    return train_tokenizer(options, next);
  }
  HuggingFaceFiles hugging_face_files(const Tokenizer& sentencepiece, bool has_template) const override {
    return orthant::hugging_face_files(sentencepiece, has_template);
  }
  nlohmann::ordered_json minimal_config(const Tokenizer& tokenizer) const override {
    return minimal_tokenizer_config(tokenizer);
  }
  std::shared_ptr<const ModelTemplate> model_template(const TextRules& rules,
                                                      const Tokenizer& tokenizer) const override {
    return JinjaTemplate::of(rules, tokenizer);
  }
  TextRules rules_of_chat(const std::string& name, const Tokenizer& tokenizer) const override {
    return rules_of(*chat_template(name), tokenizer);
  }
  std::shared_ptr<const Source> source(const std::string& name) const override { return lines_source(name); }
  std::vector<std::string> notes_of_rows(const Settings& settings) const override { return notes_of_lines(settings); }
};

}  // namespace
}  // namespace orthant

ORTHANT_OWN_MODULE("tokenizer", orthant::TokenizerModule, orthant::OwnTokenizerModule)
