#include "apps/serve/completion_request.h"

#include <orthant/error.h>

#include <algorithm>

#include "apps/serve/api_error.h"

namespace orthant {
namespace {

constexpr std::int64_t usual_tokens = 16;

std::vector<std::string_view> completion_fields() {
  std::vector<std::string_view> known(std::begin(answer_fields), std::end(answer_fields));
  known.insert(known.end(), {"prompt", "max_tokens", "logprobs", "echo", "suffix"});
  return known;
}

std::vector<std::int32_t> token_ids(const OrderedJson& list, const Tokenizer& tokenizer, std::int64_t vocabulary) {
  std::vector<std::int32_t> ids = listed_ids(list, "prompt", vocabulary);
  try {
    tokenizer.decode(ids);  // a vocabulary may have holes
  } catch (const Error& error) {
    throw ApiError(400, error.what(), "prompt");
  }
  return ids;
}

// How the texts of one request become ids.
struct PromptTexts {
  const Tokenizer& tokenizer;
  const TextRules& rules;
  std::optional<bool> bos = {};  // as asked for
};

std::vector<std::int32_t> encoded(const std::string& text, const PromptTexts& by) {
  try {
    return prompt_ids(by.tokenizer, by.rules, text, by.bos);
  } catch (const Error& error) {
    throw ApiError(400, error.what(), "prompt");
  }
}

// string | [string] | [id] | [[id]].
std::vector<std::vector<std::int32_t>> prompts_of(const RequestFields& fields, const Tokenizer& tokenizer,
                                                  const CompletionLimits& limits) {
  const OrderedJson* prompt = fields.at("prompt");
  if (prompt == nullptr) {
    refuse_field("prompt", "'prompt' is missing: expected a text, a list of texts, token ids, or a list of those");
  }
  PromptTexts by{.tokenizer = tokenizer, .rules = limits.rules};
  if (fields.at("add_special_tokens") != nullptr) {
    by.bos = fields.flag("add_special_tokens");
  }
  if (prompt->is_string()) {
    return {encoded(prompt->get<std::string>(), by)};
  }
  if (!prompt->is_array() || prompt->empty()) {
    refuse_field("prompt", "'prompt' is {}: expected a text, a list of texts, token ids, or a list of those",
                 shown(*prompt));
  }
  if (prompt->front().is_number()) {
    return {token_ids(*prompt, tokenizer, limits.vocabulary)};
  }
  if (static_cast<std::int64_t>(prompt->size()) > limits.choices) {
    refuse_field("prompt", "'prompt' holds {} prompts: one request may have {} answers", prompt->size(),
                 limits.choices);
  }
  std::vector<std::vector<std::int32_t>> prompts;
  for (const OrderedJson& one : *prompt) {
    if (one.is_string() && prompt->front().is_string()) {
      prompts.push_back(encoded(one.get<std::string>(), by));
    } else if (one.is_array() && prompt->front().is_array()) {
      prompts.push_back(token_ids(one, tokenizer, limits.vocabulary));
    } else {
      refuse_field("prompt", "'prompt' mixes kinds: expected a list of texts, or a list of lists of token ids");
    }
  }
  return prompts;
}

}  // namespace

CompletionRequest read_completion(const std::string& text, const Tokenizer& tokenizer, const CompletionLimits& limits) {
  const RequestFields fields(text, completion_fields());
  CompletionRequest read;
  Request request = answer_of(fields, limits);
  read_delivery(fields, read);
  fields.refuse_unless(fields.is("suffix", ""), "suffix",
                       "it writes on from a prompt, and never between two texts; leave it out");
  if (fields.at("logprobs") != nullptr) {
    read.logprobs = fields.integer("logprobs", 0, 0, most_logprobs);
  }
  read.echo = request.echo = fields.flag("echo");
  std::optional<std::int64_t> max_tokens;
  if (fields.at("max_tokens") != nullptr) {
    max_tokens = fields.integer("max_tokens", 0, 0, limits.context);
  }
  read.prompts = prompts_of(fields, tokenizer, limits);
  add_choices(read, request, max_tokens, usual_tokens, limits);
  return read;
}

}  // namespace orthant
