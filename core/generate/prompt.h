// A text as the ids that generation goes on from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/tokenizer/tokenizer.h"

namespace orthant {

// Begun with bos where the tokenizer's files say so. Errors: ConfigError for a text without a token.
std::vector<std::int32_t> prompt_ids(const Tokenizer& tokenizer, const std::string& text);

// Ids that end an answer: the end of text, where the tokenizer has one.
std::vector<std::int32_t> end_ids(const Tokenizer& tokenizer);

}  // namespace orthant
