#include "core/serve/completion_request.h"

#include <algorithm>
#include <random>
#include <string_view>

#include "core/base/json.h"
#include "core/serve/api_error.h"

namespace orthant {
namespace {

constexpr std::size_t most_stops = 16, longest_stop = 1000, most_stop_ids = 256;
constexpr std::int64_t most_logprobs = 20, most_answers = 128;

constexpr std::string_view known[] = {
    "model",
    "prompt",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "n",
    "stream",
    "logprobs",
    "stream_options",
    "echo",
    "stop",
    "seed",
    "suffix",
    "best_of",
    "user",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "stop_token_ids",
    "add_special_tokens",
};

// The fields of the body. null is as good as missing.
class Body {
 public:
  explicit Body(const std::string& text) {
    try {
      json_ = parse_json(std::as_bytes(std::span(text)), "the request's body");
    } catch (const Error& error) {
      throw ApiError(400, error.what());
    }
    if (!json_.is_object()) {
      throw ApiError(400, fmt::format("the request's body is a JSON {}: expected an object", json_.type_name()));
    }
    for (const auto& item : json_.items()) {
      if (std::find(std::begin(known), std::end(known), item.key()) == std::end(known)) {
        refuse_field(item.key(), "unknown field '{}': this server would ignore it, so it is refused",
                     clipped(item.key()));
      }
    }
  }

  // nullptr: missing.
  const Json* at(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  bool flag(const char* key) const {
    const Json* value = at(key);
    if (value != nullptr && !value->is_boolean()) {
      refuse_field(key, "'{}' is {}: expected true or false", key, clipped(value->dump()));
    }
    return value != nullptr && value->get<bool>();
  }
  std::int64_t integer(const char* key, std::int64_t otherwise, std::int64_t low, std::int64_t high) const {
    const Json* value = at(key);
    if (value == nullptr) {
      return otherwise;
    }
    const bool whole = value->is_number_integer() &&
                       (!value->is_number_unsigned() ||
                        value->get<std::uint64_t>() <= std::uint64_t{std::numeric_limits<std::int64_t>::max()});
    if (!whole || value->get<std::int64_t>() < low || value->get<std::int64_t>() > high) {
      refuse_field(key, "'{}' is {}: expected a whole number from {} to {}", key, clipped(value->dump()), low, high);
    }
    return value->get<std::int64_t>();
  }
  double number(const char* key, double otherwise) const {
    const Json* value = at(key);
    if (value == nullptr) {
      return otherwise;
    }
    if (!value->is_number()) {
      refuse_field(key, "'{}' is {}: expected a number", key, clipped(value->dump()));
    }
    return value->get<double>();
  }

 private:
  Json json_;
};

// What others do with these fields is not done here.
void refuse_what_is_not_done(const Body& body, std::int64_t n) {
  const auto refuse = [&](const char* key, bool harmless, const char* what) {
    if (body.at(key) != nullptr && !harmless) {
      refuse_field(key, "'{}' is not done by this server: {}", key, what);
    }
  };
  const auto is = [&](const char* key, const Json& value) { return body.at(key) != nullptr && *body.at(key) == value; };
  refuse("suffix", is("suffix", ""), "it writes on from a prompt, and never between two texts; leave it out");
  refuse("best_of", is("best_of", n), "ask for 'n' answers and choose among them");
  refuse("presence_penalty", is("presence_penalty", 0), "leave it out, or give 0");
  refuse("frequency_penalty", is("frequency_penalty", 0), "leave it out, or give 0");
  refuse("logit_bias", is("logit_bias", Json::object()), "leave it out, or give {}");
  if (body.at("user") != nullptr && !body.at("user")->is_string()) {
    refuse_field("user", "'user' must be a string");
  }
}

// Of the list that `field` holds.
std::vector<std::int32_t> listed_ids(const Json& list, const char* field, std::int64_t vocabulary) {
  std::vector<std::int32_t> ids;
  ids.reserve(list.size());
  for (const Json& id : list) {
    if (!id.is_number_integer() || id < 0 || id >= vocabulary) {
      refuse_field(field, "'{}' holds {} among its token ids: expected whole numbers from 0 to {}", field,
                   clipped(id.dump()), vocabulary - 1);
    }
    ids.push_back(id.get<std::int32_t>());
  }
  return ids;
}

std::vector<std::int32_t> token_ids(const Json& list, const Tokenizer& tokenizer, std::int64_t vocabulary) {
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
std::vector<std::vector<std::int32_t>> prompts_of(const Body& body, const Tokenizer& tokenizer,
                                                  const CompletionLimits& limits) {
  const Json* prompt = body.at("prompt");
  if (prompt == nullptr) {
    refuse_field("prompt", "'prompt' is missing: expected a text, a list of texts, token ids, or a list of those");
  }
  PromptTexts by{.tokenizer = tokenizer, .rules = limits.rules};
  if (body.at("add_special_tokens") != nullptr) {
    by.bos = body.flag("add_special_tokens");
  }
  if (prompt->is_string()) {
    return {encoded(prompt->get<std::string>(), by)};
  }
  if (!prompt->is_array() || prompt->empty()) {
    refuse_field("prompt", "'prompt' is {}: expected a text, a list of texts, token ids, or a list of those",
                 clipped(prompt->dump()));
  }
  if (prompt->front().is_number()) {
    return {token_ids(*prompt, tokenizer, limits.vocabulary)};
  }
  if (static_cast<std::int64_t>(prompt->size()) > limits.choices) {
    refuse_field("prompt", "'prompt' holds {} prompts: one request may have {} answers", prompt->size(),
                 limits.choices);
  }
  std::vector<std::vector<std::int32_t>> prompts;
  for (const Json& one : *prompt) {
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

std::vector<std::string> stops_of(const Body& body) {
  const Json* stop = body.at("stop");
  if (stop == nullptr) {
    return {};
  }
  const Json list = stop->is_array() ? *stop : Json::array({*stop});
  if (list.size() > most_stops) {
    refuse_field("stop", "'stop' holds {} texts: at most {} are looked for", list.size(), most_stops);
  }
  std::vector<std::string> stops;
  for (const Json& text : list) {
    const std::size_t size = text.is_string() ? text.get_ref<const std::string&>().size() : 0;
    if (size == 0 || size > longest_stop) {
      refuse_field("stop", "'stop' holds {}: expected texts of 1 to {} bytes", clipped(text.dump()), longest_stop);
    }
    stops.push_back(text.get<std::string>());
  }
  return stops;
}

bool usage_wanted(const Body& body, bool stream) {
  const Json* options = body.at("stream_options");
  if (options == nullptr) {
    return false;
  }
  if (!stream) {
    refuse_field("stream_options", "'stream_options' without \"stream\": true");
  }
  if (!options->is_object()) {
    refuse_field("stream_options", "'stream_options' must be an object");
  }
  bool wanted = false;
  for (const auto& item : options->items()) {
    if (item.key() != "include_usage" || !item.value().is_boolean()) {
      refuse_field("stream_options", "'stream_options' may hold \"include_usage\": true or false, and nothing else");
    }
    wanted = item.value().get<bool>();
  }
  return wanted;
}

void check_model(const Body& body, const std::string& name) {
  const Json* model = body.at("model");
  if (model != nullptr && !model->is_string()) {
    refuse_field("model", "'model' must be a string");
  }
  if (model != nullptr && *model != name) {
    throw ApiError(404,
                   fmt::format("the model '{}' is not served here; this server has '{}'",
                               clipped(model->get<std::string>()), name),
                   "model", "model_not_found");
  }
}

// Beside the ends of the model's texts.
std::vector<std::int32_t> stop_ids_of(const Body& body, const CompletionLimits& limits) {
  std::vector<std::int32_t> ids = limits.ends.ids;
  if (const Json* asked = body.at("stop_token_ids")) {
    if (!asked->is_array() || asked->size() > most_stop_ids) {
      refuse_field("stop_token_ids", "'stop_token_ids' is {}: expected a list of at most {} token ids",
                   clipped(asked->dump()), most_stop_ids);
    }
    const std::vector<std::int32_t> more = listed_ids(*asked, "stop_token_ids", limits.vocabulary);
    ids.insert(ids.end(), more.begin(), more.end());
  }
  return ids;
}

Request request_of(const Body& body, const std::optional<std::int64_t>& logprobs, const CompletionLimits& limits) {
  constexpr std::int64_t any = std::numeric_limits<std::int64_t>::max();
  Request request;
  request.max_tokens = body.integer("max_tokens", 16, 0, limits.context);
  request.sampling.temperature = body.number("temperature", 1);
  request.sampling.top_k = body.integer("top_k", 0, std::numeric_limits<std::int64_t>::min(), any);
  request.sampling.top_p = body.number("top_p", 1);
  request.sampling.min_p = body.number("min_p", 0);
  if (const auto fault = sampling_fault(request.sampling)) {
    refuse_field(fault->member, "'{}' {}", fault->member, fault->words);
  }
  if (body.at("seed") != nullptr) {
    request.sampling.seed =
        static_cast<std::uint64_t>(body.integer("seed", 0, std::numeric_limits<std::int64_t>::min(), any));
  } else {
    std::random_device random;
    request.sampling.seed = std::uint64_t{random()} << 32 | random();
  }
  request.stop_ids = stop_ids_of(body, limits);
  request.stop = stops_of(body);
  request.stop.insert(request.stop.end(), limits.ends.texts.begin(), limits.ends.texts.end());
  request.log_probabilities = logprobs.has_value();
  request.likeliest = static_cast<std::size_t>(logprobs.value_or(0));
  request.echo = body.flag("echo");
  return request;
}

// Room for the prompt and its answer. A max_tokens that nobody asked for takes what is left.
std::int64_t checked_max_tokens(const Body& body, std::int64_t prompt, std::int64_t max_tokens, std::int64_t context) {
  if (prompt == 0) {
    refuse_field("prompt", "'prompt' has no token: a model needs at least one to go on from");
  }
  const bool asked = body.at("max_tokens") != nullptr;
  if (prompt > context || (asked && prompt + max_tokens > context)) {
    throw ApiError(400,
                   fmt::format("the prompt has {} tokens and 'max_tokens' is {}: together they may be {} (orthant "
                               "serve --context)",
                               prompt, max_tokens, context),
                   "prompt", "context_length_exceeded");
  }
  return std::min(max_tokens, context - prompt);
}

}  // namespace

CompletionRequest read_completion(const std::string& text, const Tokenizer& tokenizer, const CompletionLimits& limits) {
  const Body body(text);
  check_model(body, limits.model);
  CompletionRequest read;
  read.n = body.integer("n", 1, 1, most_answers);
  refuse_what_is_not_done(body, read.n);
  if (body.at("logprobs") != nullptr) {
    read.logprobs = body.integer("logprobs", 0, 0, most_logprobs);
  }
  read.stream = body.flag("stream");
  read.include_usage = usage_wanted(body, read.stream);
  const Request request = request_of(body, read.logprobs, limits);
  read.echo = request.echo;
  read.prompts = prompts_of(body, tokenizer, limits);
  const std::int64_t choices = static_cast<std::int64_t>(read.prompts.size()) * read.n;
  if (choices > limits.choices) {
    refuse_field("n", "{} prompts times 'n' of {} are {} answers: one request may have {}", read.prompts.size(), read.n,
                 choices, limits.choices);
  }
  std::int64_t scores = 0;
  for (const std::vector<std::int32_t>& prompt : read.prompts) {
    const std::int64_t tokens = static_cast<std::int64_t>(prompt.size());
    const std::int64_t most = checked_max_tokens(body, tokens, request.max_tokens, limits.context);
    scores += read.n * ((request.echo ? tokens : 0) + most) * (read.logprobs.value_or(0) + 1);
    for (std::int64_t i = 0; i < read.n; ++i) {
      read.choices.push_back(request);
      read.choices.back().prompt = prompt;
      read.choices.back().max_tokens = most;
      read.choices.back().answer = static_cast<std::uint64_t>(i);
    }
  }
  if (read.logprobs.has_value() && scores > limits.scores) {
    refuse_field("logprobs", "this asks for {} log-probabilities, of {} that one request may have: ask in several",
                 scores, limits.scores);
  }
  return read;
}

}  // namespace orthant
