// The fields that completions and chats have in common: how an answer is sampled, where it ends, what is told of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/lm/generator.h"
#include "apps/lm/prompt.h"
#include "apps/serve/request_fields.h"

namespace orthant {

class ModelTemplate;

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
  const ModelTemplate* chat = nullptr;  // null: it has none
  std::string no_chat = {};             // why, and what to do
};

// One request for answers, of either kind.
struct CompletionRequest {
  bool chat = false;
  std::vector<std::vector<std::int32_t>> prompts;  // as token ids; a chat has one
  std::int64_t n = 1;                              // answers to each
  std::optional<std::int64_t> logprobs;            // how many candidates are told of
  bool echo = false, stream = false, include_usage = false;
  bool reads_calls = false;      // of tools: the template writes them as ToolCallReader reads them
  bool in_thought = false;       // the prompt ends with the beginning of one
  std::vector<Request> choices;  // for the generator, prompt by prompt; they tell nobody yet
};

constexpr std::int64_t most_logprobs = 20;

constexpr std::string_view answer_fields[] = {
    "model",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "n",
    "stream",
    "stream_options",
    "stop",
    "seed",
    "user",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "ignore_eos",
    "stop_token_ids",
    "min_tokens",
    "add_special_tokens",
    "best_of",
    "response_format",
};

// All of these but max_tokens, echo and log-probabilities. Errors: ApiError, of status 400 or 404.
Request answer_of(const RequestFields& fields, const CompletionLimits& limits);
// stream, stream_options, n.
void read_delivery(const RequestFields& fields, CompletionRequest& read);

// The answers to all prompts. max_tokens: nothing where nobody asked for a number; `otherwise` then, and no more than
// there is room for. Errors: ApiError of status 400, for a prompt without room too.
void add_choices(CompletionRequest& read, const Request& request, std::optional<std::int64_t> max_tokens,
                 std::int64_t otherwise, const CompletionLimits& limits);

// Of the list that `field` holds.
std::vector<std::int32_t> listed_ids(const OrderedJson& list, const char* field, std::int64_t vocabulary);

}  // namespace orthant
