// Engine: a model that is fed tokens of many sequences and gives the logits behind them.
//
// One engine, one answer: on the CPU, without a capacity, logits, log-probabilities and choices of experts have the
// bits of the training forward pass on the whole sequence, however its tokens were cut into portions and whatever other
// sequences were fed with them. (Products of rows that do not depend on each other: core/device/cpu/gemm.h,
// experts/cpu/block_gemm.h; attention: apps/lm/key_value_cache.h.) Elsewhere they differ by rounding.
//
// A layout may divide the model among ranks (layout.h). Each then has an engine of its own, and all of them make the
// same calls and are told the same logits; feed and score are collective. Sums over ranks may be in another order than
// on one rank: the bits are then those of the training forward pass of that layout. Thread safety: none.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apps/lm/cached_core.h"
#include "apps/lm/divided_model.h"
#include "apps/lm/latent_cache.h"
#include "apps/lm/layout.h"
#include "apps/pretrained/opened_model.h"

namespace orthant {

constexpr std::int64_t default_latent_room = std::int64_t{4} << 30;

struct EngineOptions {
  int threads = 1;                                 // of the CPU
  std::int64_t latent_room = default_latent_room;  // bytes for what latent attention makes of its rows (LatentCache)
  // Plugins that divide the model among the communicator's ranks; none: it has one.
  std::vector<PluginRequest> layout = {};
  // What routers chose, if somebody wants to know: the experts of a token of a sequence (-1: of score()) in a routed
  // layer, counted among these. Of the layers that this rank has.
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
  // Errors: those of for_generation and of DividedModel.
  Engine(const OpenedModel& model, const EngineOptions& options, Communicator& communicator);
  ~Engine();

  std::int64_t vocabulary() const { return vocabulary_; }
  // Tokens that a sequence may have; 0: any number (learned positions end with the longest sequence of training).
  std::int64_t longest() const { return longest_; }
  // Ids that sequences have here are the caller's; a new one begins with its first feed.
  std::int64_t length(int sequence) const;
  void forget(int sequence);

  // Whether sequences have a source beside their tokens (orthant/stepwise.h).
  bool has_source() const { return model_.stepwise() != nullptr; }
  // REQUIRES: has_source. The tokens that an answer to a source goes on from; a sequence with this source, which has no
  // token yet. Errors: ConfigError for a source that the model has no positions for.
  std::vector<std::int32_t> first_tokens(std::span<const std::int32_t> source) const;
  void begin(int sequence, std::span<const std::int32_t> source);
  // Tokens that end an answer, beside those of the tokenizer.
  std::vector<std::int32_t> ends() const;

  // What later sequences may share of a sequence: page_tokens tokens of it with all that came before them.
  static constexpr std::int64_t page_tokens = KeyValueCache::page_tokens;
  struct Page {
    std::vector<KeyValueCache> keys;  // by layer
    std::vector<Tensor> narrow;       // likewise, of latent attention
    std::int64_t bytes = 0;
  };
  // REQUIRES: the sequence has been fed all of page `index`.
  Page page(int sequence, std::int64_t index);
  // A sequence that has no token yet begins with these pages, which follow each other from the first one on.
  void adopt(int sequence, std::span<const std::shared_ptr<const Page>> pages);

  // One forward pass or several. seen(feed, token, logits): for each wanted one, in order; logits f32 [V], valid during
  // the call. Errors: ConfigError for a sequence that becomes too long, or an id outside the vocabulary, before
  // anything is computed.
  using Seen = std::function<void(std::size_t feed, std::size_t token, std::span<const float> logits)>;
  void feed(std::span<const Feed> feeds, const Seen& seen);

  // log p of `token` by these logits, with the bits of training's loss.
  float log_probability(std::span<const float> logits, std::int32_t token);

  // As one feed with `every`, but by training's forward pass, and without a cache. source: of a model that has one.
  void score(std::span<const std::int32_t> tokens, const Seen& seen, std::span<const std::int32_t> source = {});

  DividedModel& model() { return model_; }

 private:
  struct Portion;
  class Tap;
  void check(std::span<const Feed> feeds) const;
  void pass(std::span<const Portion> portions, std::span<const Feed> feeds, const Seen& seen);
  HostBatch with_source(std::span<const std::int32_t> tokens, std::span<const std::int32_t> source) const;

  std::int64_t vocabulary_, longest_, window_;
  std::unique_ptr<Tap> tap_;
  CachedCore* core_;  // of the model's plan
  DividedModel model_;
  LatentCache latent_;  // its tensors are of the model's device
  std::map<int, std::int64_t> length_;
};

}  // namespace orthant
