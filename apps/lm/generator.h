// Generator: answers to many prompts at once, a token of each in every forward pass (continuous batching: Yu et al.,
// "Orca", 2022). A prompt joins the others when there is a place for it, and leaves when it is done.
//
// An answer depends on its request alone, not on what is generated beside it: bit for bit where the engine's logits do
// not (engine.h). Thread safety: none.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <orthant/error.h>

#include "apps/lm/engine.h"
#include "apps/lm/json_tokens.h"
#include "apps/lm/logit_rules.h"
#include "apps/lm/prefix_cache.h"
#include "apps/lm/sampler.h"
#include "apps/lm/text_stream.h"
#include "core/tokenizer/tokenizer.h"

namespace orthant {

// A token and how likely it was.
struct ScoredToken {
  std::int32_t id = 0;
  double log_probability = 0;  // by the model: of temperature 1, whatever the sampling
};

enum class Finish {
  stop,    // a stop token, or a stop string
  length,  // max_tokens, or the model's longest sequence
};
const char* name_of(Finish finish);  // "stop" or "length"

// One more token of an answer, or of the prompt where Request::echo asks for it.
struct TokenEvent {
  ScoredToken token;  // log_probability is 0 unless asked for, and of a prompt's first token, which nothing predicts
  std::vector<ScoredToken> likeliest;  // the first Request::likeliest
  bool of_prompt = false;
  // Text that has become certain; what may yet be part of a stop string is held back. Empty for tokens of the prompt.
  std::string text;
  std::optional<Finish> finish;  // this is the answer's last
  std::int64_t cached = 0;       // tokens of the prompt that were known already (PrefixCache)
};

struct Request {
  // At least one token. Of a model whose sequences have a source it is that, and the answer goes on from the first
  // tokens that the model itself begins with (Engine::first_tokens).
  std::vector<std::int32_t> prompt;
  std::int64_t max_tokens = 128;  // 0: the prompt is scored and nothing is added
  Sampling sampling;
  std::uint64_t answer = 0;            // Sampler::draw's: several answers to one prompt differ in it
  std::vector<std::int32_t> stop_ids;  // they end the answer, and are no part of its text
  std::vector<std::string> stop;       // likewise; none is empty
  bool ends = true;                    // tokens that the model itself ends with (Engine::ends) are stop_ids too
  std::int64_t min_tokens = 0;         // no stop token is drawn before, and no stop text found in what comes before
  bool json = false;                   // the answer is a JSON object, and ends with it (JsonText)
  std::shared_ptr<const JsonSchema> schema = {};  // that it follows, with `json`; null: any
  bool log_probabilities = false;
  std::size_t likeliest = 0;
  bool echo = false;                      // events for the prompt's tokens too; of a model with sources there are none
  std::vector<std::int32_t> source = {};  // set by the generator
  // false: the answer is not wanted any more. It may not call the generator.
  std::function<bool(const TokenEvent&)> on_token = {};
  // Logits of this answer are not finite: it ends here, and the others go on. Without it step() throws. It may not call
  // the generator.
  std::function<void(const Error&)> on_error = {};
};

class Generator {
 public:
  // tokenizer: null where ids alone are wanted; events then have no text. batch: requests that are worked on at once.
  // prefix_room: as PrefixCache's. Engine and tokenizer outlive this.
  Generator(Engine& engine, const Tokenizer* tokenizer, std::size_t batch, std::int64_t prefix_room = 0);
  ~Generator();

  // Errors: ConfigError for a request that can never be answered: an empty prompt, an id that is none, a prompt longer
  // than the model's longest sequence, sampling out of its bounds, a stop string that is empty or has no
  // tokenizer.
  void check(const Request& request) const;
  // Errors: as check.
  void add(Request request);
  // One more token for all that are being answered. false: there is nothing to do. Errors: Error where logits are not
  // finite and the request has no on_error; those of the engine. Call clear() then.
  bool step();
  std::size_t waiting() const;  // requests that are not done
  std::int64_t pages() const;   // of keys and values, of the answers that are worked on
  const PrefixCache& prefixes() const { return prefixes_; }
  void clear();  // forgets all of them, without an event

 private:
  class Answer;
  void seen(Answer& answer, std::size_t token, std::span<const float> logits);
  void go_on(Answer& answer, std::size_t token, std::span<const float> logits);
  // The logits, -infinity where no token is. Valid until the next call.
  std::span<const float> with_token(std::span<const float> logits);
  // What a token is drawn by. Valid until the next call.
  std::span<const float> changed(const Answer& answer, std::span<const float> logits);
  TokenEvent scored(const Request& request, std::span<const float> logits, std::int32_t id);

  Engine& engine_;
  const Tokenizer* tokenizer_;
  std::size_t batch_;
  int next_ = 0;                       // sequence's id
  std::vector<std::int32_t> unknown_;  // ids of the model that are none of the tokenizer's
  std::vector<float> known_, changed_;
  Sampler sampler_;
  PrefixCache prefixes_;
  std::unique_ptr<JsonTokens> bytes_;  // once somebody wants JSON
  std::list<Request> queue_;
  std::list<std::unique_ptr<Answer>> active_;
};

}  // namespace orthant
