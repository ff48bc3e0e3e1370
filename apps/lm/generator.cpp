#include "apps/lm/generator.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace orthant {
namespace {

// Answers that are under way wait for a new one's prompt no longer than for so many of its tokens.
constexpr std::size_t prompt_tokens_a_step = 512;

// Rows of the head that no token has, as padding of the vocabulary, are neither drawn nor told.
std::vector<std::int32_t> ids_without_token(const Tokenizer& tokenizer, std::int64_t vocabulary) {
  std::vector<std::int32_t> none;
  for (std::int32_t id = 0; id < vocabulary; ++id) {
    try {
      tokenizer.decode({&id, 1});
    } catch (const Error&) {
      none.push_back(id);
    }
  }
  return none;
}

}  // namespace

const char* name_of(Finish finish) {
  return finish == Finish::stop ? "stop" : "length";
}

// A request that has a place among the engine's sequences.
class Generator::Answer {
 public:
  Answer(Request request, int sequence, const Tokenizer* tokenizer)
      : request_(std::move(request)),
        sequence_(sequence),
        next_(request_.prompt),
        rules_(request_.sampling, request_.prompt),
        json_(request_.schema.get()) {
    if (tokenizer != nullptr) {
      text_.emplace(*tokenizer, request_.prompt);
    }
  }

  const Request& request() const { return request_; }
  const LogitRules& rules() const { return rules_; }
  const JsonAnswer& json() const { return json_; }
  // Tokens that may not come yet.
  std::span<const std::int32_t> withheld() const {
    return made_ < request_.min_tokens ? std::span<const std::int32_t>(request_.stop_ids)
                                       : std::span<const std::int32_t>();
  }
  int sequence() const { return sequence_; }
  bool done() const { return done_; }
  std::int64_t made() const { return made_; }
  bool scores_prompt() const { return request_.echo && (request_.log_probabilities || request_.likeliest > 0); }
  std::size_t left() const { return next_.size() - fed_; }
  // Of what is left, at most so many.
  Feed feed(std::size_t most) const {
    return {.sequence = sequence_,
            .tokens = std::span(next_).subspan(fed_, std::min(most, left())),
            .every = made_ == 0 && scores_prompt()};
  }
  std::size_t fed() const { return fed_; }
  // `count` of them have been fed, and what they led to is known.
  void advance(std::size_t count) {
    tokens_.insert(tokens_.end(), next_.begin() + static_cast<std::ptrdiff_t>(fed_),
                   next_.begin() + static_cast<std::ptrdiff_t>(fed_ + count));
    fed_ += count;
    if (following_.has_value()) {
      next_ = {*following_};
      following_.reset();
      fed_ = 0;
    }
  }

  // So many tokens of the prompt need not be fed.
  void begin_at(std::int64_t cached) {
    cached_ = cached;
    fed_ = static_cast<std::size_t>(cached);
    tokens_.assign(next_.begin(), next_.begin() + cached);
  }
  // What has been fed: the prompt, then what it was gone on with.
  const std::vector<std::int32_t>& tokens() const { return tokens_; }

  void tell(TokenEvent event) {
    event.cached = cached_;
    done_ = done_ || event.finish.has_value();
    if (request_.on_token && !request_.on_token(event)) {
      done_ = true;
    }
  }

  // False: nobody is told.
  bool fail(const Error& error) {
    done_ = true;
    if (request_.on_error) {
      request_.on_error(error);
    }
    return request_.on_error != nullptr;
  }

  // One more token of the answer. may_go_on: there is room for another one behind it. bytes: of tokens, for JSON.
  void add(TokenEvent event, bool may_go_on, const JsonTokens* bytes) {
    ++made_;
    following_ = event.token.id;
    rules_.add(event.token.id);
    const bool whole = request_.json && json_.add(bytes->of(event.token.id)) && json_.whole();
    const auto& ids = request_.stop_ids;
    const bool stopped = std::find(ids.begin(), ids.end(), event.token.id) != ids.end();
    if (!stopped) {
      held_ += text_ ? text_->add(event.token.id) : "";
    }
    if (stopped || whole || !may_go_on) {
      held_ += text_ ? text_->finish() : "";
    }
    const bool may_stop = made_ > request_.min_tokens;
    const std::size_t stop = may_stop ? first_stop() : std::string::npos;
    held_.resize(std::min(stop, held_.size()));
    if (stopped || whole || stop != std::string::npos) {
      event.finish = Finish::stop;
    } else if (!may_go_on) {
      event.finish = Finish::length;
    }
    const std::size_t certain = event.finish.has_value() || !may_stop ? held_.size() : held_.size() - maybe_stop();
    event.text = held_.substr(0, certain);
    held_.erase(0, certain);
    tell(event);
  }

 private:
  std::size_t first_stop() const {
    std::size_t first = std::string::npos;
    for (const std::string& stop : request_.stop) {
      first = std::min(first, held_.find(stop));
    }
    return first;
  }
  // The longest end of held_ that a stop string begins with.
  std::size_t maybe_stop() const {
    std::size_t longest = 0;
    for (const std::string& stop : request_.stop) {
      for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > longest; --n) {
        if (held_.ends_with(std::string_view(stop).substr(0, n))) {
          longest = n;
        }
      }
    }
    return longest;
  }

  Request request_;
  int sequence_;
  std::optional<TextStream> text_;
  std::vector<std::int32_t> next_;  // the prompt, then each token that was made
  std::size_t fed_ = 0;             // of these
  std::vector<std::int32_t> tokens_;
  std::int64_t cached_ = 0;
  std::optional<std::int32_t> following_;
  std::int64_t made_ = 0;
  LogitRules rules_;
  JsonAnswer json_;
  std::string held_;  // text that was not told
  bool done_ = false;
};

Generator::Generator(Engine& engine, const Tokenizer* tokenizer, std::size_t batch, std::int64_t prefix_room)
    : engine_(engine), tokenizer_(tokenizer), batch_(batch), prefixes_(engine, engine.has_source() ? 0 : prefix_room) {
  if (tokenizer != nullptr) {
    unknown_ = ids_without_token(*tokenizer, engine.vocabulary());
  }
}

Generator::~Generator() {
  clear();
}

void Generator::clear() {
  for (const auto& answer : active_) {
    engine_.forget(answer->sequence());
  }
  active_.clear();
  queue_.clear();
}

std::int64_t Generator::pages() const {
  std::int64_t pages = 0;
  for (const auto& answer : active_) {
    pages += (engine_.length(answer->sequence()) + Engine::page_tokens - 1) / Engine::page_tokens;
  }
  return pages;
}

std::size_t Generator::waiting() const {
  return queue_.size() + active_.size();
}

void Generator::check(const Request& request) const {
  const auto refuse = [](bool bad, std::string why) {
    if (bad) {
      throw ConfigError(std::move(why));
    }
  };
  refuse(request.prompt.empty(), "the prompt has no token: a model needs at least one to go on from");
  for (const std::int32_t id : request.prompt) {
    refuse(id < 0 || id >= engine_.vocabulary(),
           fmt::format("token {} of the prompt: this model's vocabulary has {}", id, engine_.vocabulary()));
  }
  const std::int64_t tokens = static_cast<std::int64_t>(request.prompt.size());
  refuse(engine_.longest() > 0 && tokens > engine_.longest(),
         fmt::format("the prompt has {} tokens, and this model positions for {}", tokens, engine_.longest()));
  if (engine_.has_source()) {
    engine_.first_tokens(request.prompt);
    refuse(request.echo, "echo: this model's prompt is a source, which no answer begins with: leave echo out");
  }
  refuse(request.max_tokens < 0, fmt::format("max_tokens is {}: expected 0 or more", request.max_tokens));
  check_sampling(request.sampling);
  refuse(request.json && tokenizer_ == nullptr, "JSON needs a tokenizer, and there is none");
  const auto known = [&](std::int32_t id) { return id >= 0 && id < engine_.vocabulary(); };
  refuse(!std::all_of(request.stop_ids.begin(), request.stop_ids.end(), known) ||
             !std::all_of(request.sampling.bias.begin(), request.sampling.bias.end(),
                          [&](const auto& one) { return known(one.first); }),
         fmt::format("a token of stop_ids or of the bias: this model's vocabulary has {}", engine_.vocabulary()));
  for (const std::string& stop : request.stop) {
    refuse(stop.empty(), "an empty stop string would end every answer at once: leave it out");
    refuse(tokenizer_ == nullptr,
           "a stop string needs a tokenizer, and there is none: leave it out, or give --tokenizer FILE");
  }
}

void Generator::add(Request request) {
  check(request);
  if (request.json && bytes_ == nullptr) {
    bytes_ = std::make_unique<JsonTokens>(*tokenizer_, engine_.vocabulary());
  }
  if (engine_.has_source()) {
    request.source = std::move(request.prompt);
    request.prompt = engine_.first_tokens(request.source);
    const std::vector<std::int32_t> ends = request.ends ? engine_.ends() : std::vector<std::int32_t>();
    request.stop_ids.insert(request.stop_ids.end(), ends.begin(), ends.end());
  }
  queue_.push_back(std::move(request));
}

std::span<const float> Generator::with_token(std::span<const float> logits) {
  if (unknown_.empty()) {
    return logits;
  }
  known_.assign(logits.begin(), logits.end());
  for (const std::int32_t id : unknown_) {
    known_[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
  }
  return known_;
}

std::span<const float> Generator::changed(const Answer& answer, std::span<const float> logits) {
  const Request& request = answer.request();
  if (answer.rules().neutral(answer.withheld()) && !request.json) {
    return logits;
  }
  changed_.assign(logits.begin(), logits.end());
  answer.rules().apply(changed_, answer.withheld());
  if (request.json) {
    bytes_->allow(answer.json(), changed_, request.stop_ids);
  }
  return changed_;
}

// The token by the model's own probabilities, and those that were likelier than others.
TokenEvent Generator::scored(const Request& request, std::span<const float> logits, std::int32_t id) {
  TokenEvent event{.token = {.id = id}, .likeliest = {}, .text = {}, .finish = {}};
  if (!request.log_probabilities && request.likeliest == 0) {
    return event;
  }
  event.token.log_probability = static_cast<double>(engine_.log_probability(logits, id));
  require(std::isfinite(event.token.log_probability),
          "the log-probability of token {} is {}: the model's weights have diverged", id, event.token.log_probability);
  const std::span<const float> known = with_token(logits);
  const std::size_t count = std::min(request.likeliest, known.size() - unknown_.size());
  std::vector<std::int32_t> order(known.size());
  std::iota(order.begin(), order.end(), 0);
  const auto at = [&](std::int32_t i) { return static_cast<double>(known[static_cast<std::size_t>(i)]); };
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    [&](std::int32_t a, std::int32_t b) { return at(a) != at(b) ? at(a) > at(b) : a < b; });
  for (std::size_t i = 0; i < count; ++i) {
    event.likeliest.push_back(
        {order[i],
         event.token.log_probability + (at(order[i]) - static_cast<double>(logits[static_cast<std::size_t>(id)]))});
  }
  return event;
}

void Generator::seen(Answer& answer, std::size_t token, std::span<const float> logits) {
  if (answer.done()) {
    return;
  }
  try {
    go_on(answer, token, logits);
  } catch (const Error& error) {
    if (!answer.fail(error)) {
      throw;
    }
  }
}

void Generator::go_on(Answer& answer, std::size_t token, std::span<const float> logits) {
  const Request& request = answer.request();
  if (answer.made() == 0 && token + 1 < request.prompt.size()) {
    if (!answer.scores_prompt()) {
      return;  // the end of a portion
    }
    TokenEvent event = scored(request, logits, request.prompt[token + 1]);
    event.of_prompt = true;
    if (request.max_tokens == 0 && token + 2 == request.prompt.size()) {
      event.finish = Finish::length;
    }
    answer.tell(event);
    return;
  }
  if (request.max_tokens == 0) {
    return;
  }
  const std::int64_t length = engine_.length(answer.sequence());
  const std::int32_t id = sampler_.draw(changed(answer, with_token(logits)), request.sampling, request.answer, length);
  const bool room = engine_.longest() == 0 || length < engine_.longest();
  answer.add(scored(request, logits, id), room && answer.made() + 1 < request.max_tokens, bytes_.get());
}

bool Generator::step() {
  while (!queue_.empty() && active_.size() < batch_) {
    active_.push_back(std::make_unique<Answer>(std::move(queue_.front()), next_++, tokenizer_));
    queue_.pop_front();
    Answer& answer = *active_.back();
    const Request& request = answer.request();
    if (engine_.has_source()) {
      engine_.begin(answer.sequence(), request.source);
    }
    if (!answer.scores_prompt() && request.max_tokens > 0) {
      answer.begin_at(prefixes_.begin(answer.sequence(), request.prompt));
    }
    for (std::size_t i = 0; request.echo && i < (answer.scores_prompt() ? 1 : request.prompt.size()); ++i) {
      TokenEvent event{
          .token = {.id = request.prompt[i]}, .likeliest = {}, .of_prompt = true, .text = {}, .finish = {}};
      if (request.max_tokens == 0 && i + 1 == request.prompt.size()) {
        event.finish = Finish::length;
      }
      answer.tell(event);
    }
    if (request.max_tokens == 0 && !request.echo) {
      answer.tell({.token = {}, .likeliest = {}, .of_prompt = true, .text = {}, .finish = Finish::length});
    }
  }
  std::vector<Feed> feeds;
  std::vector<Answer*> answers;
  std::size_t room = prompt_tokens_a_step;
  for (const auto& answer : active_) {
    const std::size_t wanted = answer->done() ? 0 : std::min(answer->left(), answer->left() == 1 ? 1 : room);
    if (wanted > 0) {
      answers.push_back(answer.get());
      feeds.push_back(answer->feed(wanted));
      room -= std::min(room, wanted);
    }
  }
  engine_.feed(feeds, [&](std::size_t feed, std::size_t token, std::span<const float> logits) {
    seen(*answers[feed], answers[feed]->fed() + token, logits);
  });
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const bool of_prompt = answers[i]->made() <= 1;
    answers[i]->advance(feeds[i].tokens.size());
    if (of_prompt || answers[i]->done()) {
      prefixes_.keep(answers[i]->sequence(), answers[i]->tokens());
    }
  }
  active_.remove_if([&](const std::unique_ptr<Answer>& answer) {
    if (answer->done()) {
      engine_.forget(answer->sequence());
    }
    return answer->done();
  });
  return waiting() > 0;
}

}  // namespace orthant
