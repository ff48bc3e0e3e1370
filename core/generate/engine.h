// Engine: a model that is fed tokens of many sequences and gives the logits behind them.
//
// One engine, one answer: on the CPU, without a capacity, logits, log-probabilities and choices of experts have the
// bits of the training forward pass on the whole sequence, however its tokens were cut into portions and whatever other
// sequences were fed with them. (Products of rows that do not depend on each other: core/device/cpu/gemm.h,
// experts/cpu/block_gemm.h; attention: core/device/cpu/key_value_cache.h.) Elsewhere they differ by rounding.
//
// One rank of this process holds the whole model. Thread safety: none.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/generate/cached_core.h"
#include "core/pretrained/one_rank_model.h"
#include "core/pretrained/opened_model.h"

namespace orthant {

struct EngineOptions {
  int threads = 1;  // of the CPU
  // What routers chose, if somebody wants to know: the experts of a token of a sequence (-1: of score()) in a routed
  // layer, counted among these.
  std::function<void(int sequence, std::int64_t position, int routed, std::span<const std::int32_t> experts)> chose =
      {};
};

// Tokens that are appended to a sequence.
struct Feed {
  int sequence = 0;
  std::span<const std::int32_t> tokens;
  bool every = false;  // logits behind each of the tokens are wanted, else behind the last
};

class Engine {
 public:
  // Errors: ConfigError for a router whose choices depend on later tokens; those of OneRankModel.
  Engine(const OpenedModel& model, const EngineOptions& options, Communicator& communicator);
  ~Engine();

  std::int64_t vocabulary() const { return vocabulary_; }
  // Tokens that a sequence may have; 0: any number (learned positions end with the longest sequence of training).
  std::int64_t longest() const { return longest_; }
  // Ids that sequences have here are the caller's; a new one begins with its first feed.
  std::int64_t length(int sequence) const;
  void forget(int sequence);

  // One forward pass or several. seen(feed, token, logits): for each wanted one, in order; logits f32 [V], valid during
  // the call. Errors: ConfigError for a sequence that becomes too long, or an id outside the vocabulary, before
  // anything is computed.
  using Seen = std::function<void(std::size_t feed, std::size_t token, std::span<const float> logits)>;
  void feed(std::span<const Feed> feeds, const Seen& seen);

  // log p of `token` by these logits, with the bits of training's loss.
  float log_probability(std::span<const float> logits, std::int32_t token);

  // As one feed with `every`, but by training's forward pass, and without a cache.
  void score(std::span<const std::int32_t> tokens, const Seen& seen);

 private:
  struct Portion;
  class Tap;
  void check(std::span<const Feed> feeds) const;
  void pass(std::span<const Portion> portions, std::span<const Feed> feeds, const Seen& seen);
  // Behind rows `wanted` of x [T, d].
  void head(const Tensor& x, std::span<const std::int64_t> wanted,
            const std::function<void(std::size_t, std::span<const float>)>& seen);

  std::int64_t vocabulary_, longest_;
  std::unique_ptr<Tap> tap_;
  CachedCore* core_;  // of the model's plan
  OneRankModel model_;
  std::map<int, std::int64_t> length_;
};

}  // namespace orthant
