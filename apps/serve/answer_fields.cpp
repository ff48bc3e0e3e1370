#include "apps/serve/answer_fields.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <memory>
#include <random>

#include "apps/serve/api_error.h"

namespace orthant {
namespace {

constexpr std::size_t most_stops = 16, longest_stop = 1000, most_stop_ids = 256;
constexpr std::int64_t most_answers = 128;

void check_model(const RequestFields& fields, const std::string& name) {
  const OrderedJson* model = fields.at("model");
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

std::vector<std::string> stops_of(const RequestFields& fields) {
  const OrderedJson* stop = fields.at("stop");
  if (stop == nullptr) {
    return {};
  }
  const OrderedJson list = stop->is_array() ? *stop : OrderedJson::array({*stop});
  if (list.size() > most_stops) {
    refuse_field("stop", "'stop' holds {} texts: at most {} are looked for", list.size(), most_stops);
  }
  std::vector<std::string> stops;
  for (const OrderedJson& text : list) {
    const std::size_t size = text.is_string() ? text.get_ref<const std::string&>().size() : 0;
    if (size == 0 || size > longest_stop) {
      refuse_field("stop", "'stop' holds {}: expected texts of 1 to {} bytes", shown(text), longest_stop);
    }
    stops.push_back(text.get<std::string>());
  }
  return stops;
}

std::vector<std::int32_t> stop_ids_of(const RequestFields& fields, std::int64_t vocabulary) {
  const OrderedJson* asked = fields.at("stop_token_ids");
  if (asked == nullptr) {
    return {};
  }
  if (!asked->is_array() || asked->size() > most_stop_ids) {
    refuse_field("stop_token_ids", "'stop_token_ids' is {}: expected a list of at most {} token ids", shown(*asked),
                 most_stop_ids);
  }
  return listed_ids(*asked, "stop_token_ids", vocabulary);
}

// {"ID": -100 to 100}
std::map<std::int32_t, float> bias_of(const RequestFields& fields, std::int64_t vocabulary) {
  std::map<std::int32_t, float> bias;
  const OrderedJson* asked = fields.at("logit_bias");
  if (asked == nullptr) {
    return bias;
  }
  if (!asked->is_object()) {
    refuse_field("logit_bias", "'logit_bias' is {}: expected an object of token ids with numbers", shown(*asked));
  }
  constexpr double most = 100;
  for (const auto& [key, value] : asked->items()) {
    std::int32_t id = -1;
    const auto read = std::from_chars(key.data(), key.data() + key.size(), id);
    if (read.ec != std::errc() || read.ptr != key.data() + key.size() || id < 0 || id >= vocabulary) {
      refuse_field("logit_bias", "'logit_bias' has the key '{}': expected a token id from 0 to {}", clipped(key),
                   vocabulary - 1);
    }
    if (!value.is_number() || !(std::abs(value.get<double>()) <= most)) {
      refuse_field("logit_bias", "'logit_bias' of token {} is {}: expected a number from -100 to 100", id,
                   shown(value));
    }
    bias[id] = value.get<float>();
  }
  return bias;
}

std::shared_ptr<const JsonSchema> schema_of(const OrderedJson& format) {
  const char* const field = "response_format";
  const auto asked = format.find("json_schema");
  if (format.size() != 2 || asked == format.end() || !asked->is_object() || !asked->contains("schema")) {
    refuse_field(field,
                 "'response_format' is {}: expected {{\"type\": \"json_schema\", \"json_schema\": "
                 "{{\"name\": ..., \"schema\": {{...}}}}}}",
                 shown(format));
  }
  for (const auto& [key, value] : asked->items()) {
    const bool text = key == "name" || key == "description";
    if (key != "schema" && !(text && value.is_string()) && !(key == "strict" && value.is_boolean()) &&
        !(key != "name" && value.is_null())) {
      refuse_field(field, "'response_format.json_schema' has '{}' of {}: expected name, schema, strict, description",
                   clipped(key), shown(value));
    }
  }
  try {
    return std::make_shared<const JsonSchema>((*asked)["schema"], "response_format.json_schema.schema");
  } catch (const ConfigError& error) {
    throw ApiError(400, error.what(), field);
  }
}

void read_format(const RequestFields& fields, Request& request) {
  const char* const field = "response_format";
  const OrderedJson* format = fields.at(field);
  if (format == nullptr || *format == OrderedJson{{"type", "text"}}) {
    return;
  }
  request.json = true;
  if (format->is_object() && format->value("type", OrderedJson()) == "json_schema") {
    request.schema = schema_of(*format);
  } else if (*format != OrderedJson{{"type", "json_object"}}) {
    refuse_field(field,
                 "'response_format' is {}: expected {{\"type\": \"text\"}}, json_object, or json_schema with a "
                 "schema",
                 shown(*format));
  }
}

bool usage_wanted(const RequestFields& fields, bool stream) {
  const OrderedJson* options = fields.at("stream_options");
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

}  // namespace

std::vector<std::int32_t> listed_ids(const OrderedJson& list, const char* field, std::int64_t vocabulary) {
  std::vector<std::int32_t> ids;
  ids.reserve(list.size());
  for (const OrderedJson& id : list) {
    if (!id.is_number_integer() || id < 0 || id >= vocabulary) {
      refuse_field(field, "'{}' holds {} among its token ids: expected whole numbers from 0 to {}", field, shown(id),
                   vocabulary - 1);
    }
    ids.push_back(id.get<std::int32_t>());
  }
  return ids;
}

Request answer_of(const RequestFields& fields, const CompletionLimits& limits) {
  constexpr std::int64_t any = std::numeric_limits<std::int64_t>::max(),
                         least = std::numeric_limits<std::int64_t>::min();
  check_model(fields, limits.model);
  Request request;
  Sampling& sampling = request.sampling;
  sampling.temperature = fields.number("temperature", 1);
  sampling.top_k = fields.integer("top_k", 0, least, any);
  sampling.top_k = sampling.top_k == -1 ? 0 : sampling.top_k;  // as clients of vLLM say "all"
  sampling.top_p = fields.number("top_p", 1);
  sampling.min_p = fields.number("min_p", 0);
  sampling.presence_penalty = fields.number("presence_penalty", 0);
  sampling.frequency_penalty = fields.number("frequency_penalty", 0);
  sampling.repetition_penalty = fields.number("repetition_penalty", 1);
  sampling.bias = bias_of(fields, limits.vocabulary);
  if (const auto fault = sampling_fault(sampling)) {
    refuse_field(fault->member, "'{}' {}", fault->member, fault->words);
  }
  if (fields.at("seed") != nullptr) {
    sampling.seed = static_cast<std::uint64_t>(fields.integer("seed", 0, least, any));
  } else {
    std::random_device random;
    sampling.seed = std::uint64_t{random()} << 32 | random();
  }
  read_format(fields, request);
  request.stop_ids = stop_ids_of(fields, limits.vocabulary);
  request.stop = stops_of(fields);
  if (!fields.flag("ignore_eos")) {
    request.stop_ids.insert(request.stop_ids.end(), limits.ends.ids.begin(), limits.ends.ids.end());
    if (!request.json) {  // in JSON an end such as "\n\n" is no end
      request.stop.insert(request.stop.end(), limits.ends.texts.begin(), limits.ends.texts.end());
    }
  }
  request.min_tokens = fields.integer("min_tokens", 0, 0, limits.context);
  if (fields.at("user") != nullptr && !fields.at("user")->is_string()) {
    refuse_field("user", "'user' must be a string");
  }
  return request;
}

void read_delivery(const RequestFields& fields, CompletionRequest& read) {
  read.n = fields.integer("n", 1, 1, most_answers);
  fields.refuse_unless(fields.is("best_of", read.n), "best_of", "ask for 'n' answers and choose among them");
  read.stream = fields.flag("stream");
  read.include_usage = usage_wanted(fields, read.stream);
}

void add_choices(CompletionRequest& read, const Request& request, std::optional<std::int64_t> max_tokens,
                 std::int64_t otherwise, const CompletionLimits& limits) {
  const char* const field = read.chat ? "messages" : "prompt";
  const std::int64_t choices = static_cast<std::int64_t>(read.prompts.size()) * read.n;
  if (choices > limits.choices) {
    refuse_field("n", "{} prompts times 'n' of {} are {} answers: one request may have {}", read.prompts.size(), read.n,
                 choices, limits.choices);
  }
  std::int64_t scores = 0;
  for (const std::vector<std::int32_t>& prompt : read.prompts) {
    const std::int64_t tokens = static_cast<std::int64_t>(prompt.size());
    if (tokens == 0) {
      refuse_field(field, "'{}' has no token: a model needs at least one to go on from", field);
    }
    // A chat wants an answer.
    const bool full = read.chat && !max_tokens.has_value() && tokens == limits.context;
    if (tokens > limits.context || full || (max_tokens.has_value() && tokens + *max_tokens > limits.context)) {
      throw ApiError(400,
                     fmt::format("the prompt has {} tokens and 'max_tokens' is {}: together they may be {} (orthant "
                                 "serve --context)",
                                 tokens, max_tokens.value_or(std::min<std::int64_t>(otherwise, 1)), limits.context),
                     field, "context_length_exceeded");
    }
    const std::int64_t most = max_tokens.value_or(std::min(otherwise, limits.context - tokens));
    if (request.min_tokens > most) {
      refuse_field("min_tokens", "'min_tokens' is {}: expected at most the answer's {} tokens", request.min_tokens,
                   most);
    }
    scores += read.n * ((request.echo ? tokens : 0) + most) * (read.logprobs.value_or(0) + 1);
    for (std::int64_t i = 0; i < read.n; ++i) {
      read.choices.push_back(request);
      Request& choice = read.choices.back();
      choice.prompt = prompt;
      choice.max_tokens = most;
      choice.answer = static_cast<std::uint64_t>(i);
      choice.log_probabilities = read.logprobs.has_value();
      choice.likeliest = static_cast<std::size_t>(read.logprobs.value_or(0));
    }
  }
  if (read.logprobs.has_value() && scores > limits.scores) {
    refuse_field("logprobs", "this asks for {} log-probabilities, of {} that one request may have: ask in several",
                 scores, limits.scores);
  }
}

}  // namespace orthant
