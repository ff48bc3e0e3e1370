// A text as the ids that generation goes on from, and where its answer ends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/tokenizer/text_rules.h"

namespace orthant {

// bos: in place of what the rules say. Errors: ConfigError for a text without a token.
std::vector<std::int32_t> prompt_ids(const Tokenizer& tokenizer, const TextRules& rules, const std::string& text,
                                     std::optional<bool> bos = {});

struct AnswerEnds {
  std::vector<std::int32_t> ids;
  std::vector<std::string> texts;
};

// tokenizer: null where ids alone are wanted, which are no text and have no end. vocabulary: of the model. Errors:
// ConfigError for an end that is no id of the model.
AnswerEnds answer_ends(const Tokenizer* tokenizer, const TextRules& rules, std::int64_t vocabulary);

}  // namespace orthant
