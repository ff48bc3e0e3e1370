#include "apps/serve/choice_writer.h"

#include <algorithm>
#include <random>
#include <utility>

#include "core/base/utf8.h"

namespace orthant {
namespace {

std::vector<std::int32_t> last_of(std::span<const std::int32_t> ids) {
  const auto last = ids.last(std::min(ids.size(), TextStream::context));
  return {last.begin(), last.end()};
}

std::string new_call_id() {
  std::random_device random;
  return fmt::format("call_{:08x}{:08x}{:08x}", random(), random(), random());
}

std::int64_t characters_of(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace

ChoiceWriter::ChoiceWriter(const Tokenizer& tokenizer, const CompletionRequest& request, std::size_t index)
    : tokenizer_(tokenizer),
      request_(request),
      index_(index),
      prompt_(request.prompts[index / static_cast<std::size_t>(request.n)]),
      said_(tokenizer, request.echo ? std::vector<std::int32_t>() : last_of(prompt_)),
      behind_(request.echo ? std::vector<std::int32_t>() : last_of(prompt_)),
      reader_(request.in_thought) {}

void ChoiceWriter::add(const TokenEvent& event) {
  const bool counts = !event.of_prompt || request_.echo;  // an answer of no tokens ends with an event of none
  if (counts && request_.logprobs.has_value()) {
    add_scores(event);
  }
  if (counts && event.of_prompt) {
    std::string piece = said_.add(event.token.id);
    if (++prompt_told_ == prompt_.size()) {
      piece += said_.finish();
    }
    characters_ += characters_of(piece);
    text_ += piece;
  } else if (counts) {
    ++made_;
    characters_ += characters_of(said_.add(event.token.id));
  }
  if (counts) {
    behind_.push_back(event.token.id);
    behind_ = last_of(behind_);
  }
  add_text(event);
  cached_ = std::max(cached_, event.cached);
  if (event.finish.has_value()) {
    finish_ = event.finish == Finish::stop && all_calls_ > 0 ? "tool_calls" : name_of(*event.finish);
  }
}

void ChoiceWriter::add_text(const TokenEvent& event) {
  if (!request_.reads_calls) {
    text_ += event.text;
    return;
  }
  reader_.add(event.text, event.finish.has_value(), event.finish == Finish::stop);
  text_ += std::exchange(reader_.text, {});
  for (const ToolCall& call : std::exchange(reader_.calls, {})) {
    OrderedJson made = OrderedJson::object();
    if (request_.stream) {
      made["index"] = all_calls_;
    }
    made["id"] = new_call_id();
    made["type"] = "function";
    made["function"] = {{"name", call.name}, {"arguments", call.arguments}};
    calls_.push_back(std::move(made));
    ++all_calls_;
  }
}

// Bytes say what a text cannot.
OrderedJson ChoiceWriter::chat_score(const ScoredToken& token) const {
  OrderedJson bytes = OrderedJson::array();
  for (const char c : token_bytes(token.id)) {
    bytes.push_back(static_cast<unsigned char>(c));
  }
  return {{"token", token_text(token.id)}, {"logprob", token.log_probability}, {"bytes", std::move(bytes)}};
}

void ChoiceWriter::add_scores(const TokenEvent& event) {
  if (request_.chat) {
    OrderedJson score = chat_score(event.token);
    score["top_logprobs"] = OrderedJson::array();
    for (const ScoredToken& token : event.likeliest) {
      score["top_logprobs"].push_back(chat_score(token));
    }
    content_.push_back(std::move(score));
    return;
  }
  const std::string text = token_text(event.token.id);
  tokens_.push_back(text);
  text_offset_.push_back(characters_);
  if (event.of_prompt && prompt_told_ == 0) {
    token_logprobs_.push_back(nullptr);  // nothing predicts it
    top_logprobs_.push_back(nullptr);
    return;
  }
  token_logprobs_.push_back(event.token.log_probability);
  OrderedJson top = OrderedJson::object();
  // Of two tokens with one text the likelier stands.
  for (const ScoredToken& token : event.likeliest) {
    top.emplace(token_text(token.id), token.log_probability);
  }
  top.emplace(text, event.token.log_probability);
  top_logprobs_.push_back(std::move(top));
}

// What the token adds to those before it.
std::string ChoiceWriter::token_bytes(std::int32_t id) const {
  std::vector<std::int32_t> ids = behind_;
  const std::size_t before = tokenizer_.decode(ids).size();
  ids.push_back(id);
  std::string all;
  try {
    all = tokenizer_.decode(ids);
  } catch (const Error&) {
    return fmt::format("token_id:{}", id);  // a vocabulary with a hole
  }
  return all.substr(std::min(before, all.size()));
}

// Bytes that are no whole characters as "bytes:\xc3".
std::string ChoiceWriter::token_text(std::int32_t id) const {
  const std::string bytes = token_bytes(id);
  if (valid_utf8(bytes) == bytes.size()) {
    return bytes;
  }
  std::string text = "bytes:";
  for (const char c : bytes) {
    text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return text;
}

OrderedJson ChoiceWriter::first_delta(std::size_t index) {
  return {{"index", index},
          {"delta", {{"role", "assistant"}, {"content", ""}}},
          {"logprobs", nullptr},
          {"finish_reason", nullptr}};
}

OrderedJson ChoiceWriter::take_chat() {
  OrderedJson logprobs = nullptr;
  if (request_.logprobs.has_value()) {
    logprobs = {{"content", std::exchange(content_, OrderedJson::array())}, {"refusal", nullptr}};
  }
  std::string text = std::exchange(text_, {});
  OrderedJson said = OrderedJson::object();
  if (!request_.stream) {
    said = {{"role", "assistant"}, {"content", nullptr}, {"refusal", nullptr}};
  }
  if (!text.empty() || (calls_.empty() && (!request_.stream || finish_.is_null()))) {
    said["content"] = std::move(text);
  }
  if (!calls_.empty()) {
    said["tool_calls"] = std::exchange(calls_, OrderedJson::array());
  }
  return {{"index", index_},
          {request_.stream ? "delta" : "message", std::move(said)},
          {"logprobs", std::move(logprobs)},
          {"finish_reason", finish_}};
}

OrderedJson ChoiceWriter::take() {
  if (request_.chat) {
    return take_chat();
  }
  OrderedJson logprobs = nullptr;
  const OrderedJson none = OrderedJson::array();
  if (request_.logprobs.has_value()) {
    logprobs = {{"tokens", std::exchange(tokens_, none)},
                {"token_logprobs", std::exchange(token_logprobs_, none)},
                {"top_logprobs", std::exchange(top_logprobs_, none)},
                {"text_offset", std::exchange(text_offset_, none)}};
  }
  return {{"text", std::exchange(text_, {})},
          {"index", index_},
          {"logprobs", std::move(logprobs)},
          {"finish_reason", finish_}};
}

}  // namespace orthant
