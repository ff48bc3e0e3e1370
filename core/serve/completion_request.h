// The body of POST /v1/completions, read without trust: what is asked of the generator, or an ApiError that says which
// field is wrong and why. A field that would change the answer and is not done here is refused, never ignored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/generate/generator.h"
#include "core/generate/prompt.h"
#include "core/tokenizer/tokenizer.h"

namespace orthant {

// What the server answers, and how much of it.
struct CompletionLimits {
  std::string model;            // its name
  std::int64_t vocabulary = 0;  // ids are below it
  TextRules rules = {};         // how its texts begin
  AnswerEnds ends = {};         // and end
  std::int64_t context = 0;     // tokens of a prompt and its answer
  std::int64_t choices = 256;   // answers to one request: prompts times n
  // Tokens whose log-probabilities one request tells, each of its candidates counted.
  std::int64_t scores = 1 << 20;
};

struct CompletionRequest {
  std::vector<std::vector<std::int32_t>> prompts;  // as token ids
  std::int64_t n = 1;                              // answers to each
  std::optional<std::int64_t> logprobs;            // how many candidates are told of
  bool echo = false, stream = false, include_usage = false;
  std::vector<Request> choices;  // for the generator, prompt by prompt; they tell nobody yet
};

// Errors: ApiError, of status 400 or 404.
CompletionRequest read_completion(const std::string& body, const Tokenizer& tokenizer, const CompletionLimits& limits);

}  // namespace orthant
