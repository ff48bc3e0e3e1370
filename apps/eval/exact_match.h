// Questions that a model answers in its own words: the likeliest token again and again, compared with what was
// expected.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/pretrained/opened_model.h"
#include "core/tokenizer/tokenizer.h"

namespace orthant {

struct ExactQuestion {
  std::string where;  // file:line, for messages
  std::string prompt;
  std::string answer;  // trimmed
};

struct ExactOptions {
  std::optional<bool> bos = {};   // whether a prompt begins with it; nothing: as the model's texts do
  std::int64_t max_tokens = 64;   // of an answer
  std::vector<std::string> stop;  // texts that end one; empty: the end of a line
  int threads = 1;                // of the CPU
};

// Without the spaces, tabs and line ends around it.
std::string trimmed(const std::string& text);

// What the model answers to each question, trimmed: the text of orthant generate --temperature 0 (apps/lm), many
// at once. Errors: ConfigError for a prompt that the model cannot go on from, and Error for logits that are not finite,
// both naming the question; those of Engine.
std::vector<std::string> exact_answers(const OpenedModel& model, const Tokenizer& tokenizer,
                                       const std::vector<ExactQuestion>& questions, const ExactOptions& options);

}  // namespace orthant
