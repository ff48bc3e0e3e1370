#include "core/generate/prompt.h"

#include <orthant/error.h>

namespace orthant {

std::vector<std::int32_t> prompt_ids(const Tokenizer& tokenizer, const std::string& text) {
  const SpecialTokens& special = tokenizer.special();
  std::vector<std::int32_t> ids;
  if (special.bos_first) {
    ids.push_back(*special.bos);
  }
  tokenizer.encoder()->encode(text, ids);
  if (ids.empty()) {
    throw ConfigError(
        fmt::format("the prompt \"{}\" has no token, and the tokenizer {} none that begins a text: give something to "
                    "go on from",
                    text, tokenizer.name()));
  }
  return ids;
}

std::vector<std::int32_t> end_ids(const Tokenizer& tokenizer) {
  const SpecialTokens& special = tokenizer.special();
  return special.eos.has_value() ? std::vector{*special.eos} : std::vector<std::int32_t>{};
}

}  // namespace orthant
