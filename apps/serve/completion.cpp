#include "apps/serve/completion.h"

#include <algorithm>
#include <random>
#include <utility>

namespace orthant {
namespace {

std::string new_id(bool chat) {
  std::random_device random;
  return fmt::format("{}cmpl-{:08x}{:08x}{:08x}", chat ? "chat" : "", random(), random(), random());
}

std::string text_of(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace

Completion::Completion(CompletionRequest request, ModelLoop& model, const Tokenizer& tokenizer,
                       const std::string& model_name, std::shared_ptr<std::atomic<int>> open)
    : request_(std::move(request)),
      model_(model_name),
      id_(new_id(request_.chat)),
      created_(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())),
      told_(request_.choices.size()),
      begun_(request_.choices.size()),
      open_(std::move(open)) {
  for (std::size_t i = 0; i < request_.choices.size(); ++i) {
    choices_.emplace_back(tokenizer, request_, i);
  }
  channel_ = model.ask(request_.choices);
  ++*open_;
}

Completion::~Completion() {
  channel_->leave();
  --*open_;
}

void Completion::wait(std::chrono::milliseconds patience) {
  for (const AnswerChannel::Part& part : channel_->take(patience)) {
    choices_[part.choice].add(part.event);
  }
}

bool Completion::done() const {
  return std::all_of(choices_.begin(), choices_.end(), [](const ChoiceWriter& choice) { return choice.done(); });
}

bool Completion::anything() const {
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    if (!told_[i] && choices_[i].anything()) {
      return true;
    }
  }
  return false;
}

OrderedJson Completion::head() const {
  const char* const chat = request_.stream ? "chat.completion.chunk" : "chat.completion";
  const char* const object = request_.chat ? chat : "text_completion";
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_}};
}

OrderedJson Completion::usage() const {
  std::size_t prompt = 0;
  std::int64_t made = 0, cached = 0;
  for (const auto& ids : request_.prompts) {
    prompt += ids.size();
  }
  for (const ChoiceWriter& choice : choices_) {
    made += choice.made();
  }
  for (std::size_t i = 0; i < choices_.size(); i += static_cast<std::size_t>(request_.n)) {
    cached += choices_[i].cached();  // a prompt counts once
  }
  const std::int64_t tokens = static_cast<std::int64_t>(prompt);
  return {{"prompt_tokens", tokens},
          {"completion_tokens", made},
          {"total_tokens", tokens + made},
          {"prompt_tokens_details", {{"cached_tokens", cached}}}};
}

std::string Completion::body() {
  OrderedJson body = head();
  body["choices"] = OrderedJson::array();
  for (ChoiceWriter& choice : choices_) {
    body["choices"].push_back(choice.take());
  }
  body["usage"] = usage();
  return text_of(body);
}

std::optional<std::string> Completion::events() {
  if (ended_) {
    return std::nullopt;
  }
  std::string events;
  const auto add = [&](OrderedJson choices, OrderedJson usage_or_null) {
    OrderedJson event = head();
    event["choices"] = std::move(choices);
    if (request_.include_usage) {
      event["usage"] = std::move(usage_or_null);
    }
    events += "data: " + text_of(event) + "\n\n";
  };
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    if (!told_[i] && choices_[i].anything()) {
      if (request_.chat && !begun_[i]) {
        begun_[i] = true;
        add(OrderedJson::array({ChoiceWriter::first_delta(i)}), nullptr);
      }
      told_[i] = choices_[i].done();
      add(OrderedJson::array({choices_[i].take()}), nullptr);
    }
  }
  if (done()) {
    ended_ = true;
    if (request_.include_usage) {
      add(OrderedJson::array(), usage());
    }
    events += "data: [DONE]\n\n";
  }
  return events;
}

}  // namespace orthant
