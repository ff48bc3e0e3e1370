#include "apps/lm/prompt.h"

#include <orthant/error.h>

#include "core/run/run_text_rules.h"

namespace orthant {

std::vector<std::int32_t> prompt_ids(const Tokenizer& tokenizer, const TextRules& rules, const std::string& text,
                                     std::optional<bool> bos) {
  std::vector<std::int32_t> ids = TextReader(tokenizer, rules).ids(text, bos);
  if (ids.empty()) {
    throw ConfigError(
        fmt::format("the prompt \"{}\" has no token, and the tokenizer {} none that begins a text: give something to "
                    "go on from",
                    text, tokenizer.name()));
  }
  return ids;
}

AnswerEnds answer_ends(const Tokenizer* tokenizer, const TextRules& rules, std::int64_t vocabulary) {
  if (tokenizer == nullptr) {
    return {};
  }
  require_ends_within(rules, vocabulary, "config.json or generation_config.json of the model");
  return {.ids = end_ids(*tokenizer, rules), .texts = rules.end_texts};
}

}  // namespace orthant
