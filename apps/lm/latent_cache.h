// LatentCache: latent attention of tokens to all that came before them in their sequences.
//
// Of each token the narrow row is kept, in the compute type (DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1:
// kv_lora_rank + qk_rope_head_dim elements a layer). Keys and values of all heads are kept beside them as long as they
// find room; of the other sequences they are made of the rows again in every pass, of one sequence in one layer at a
// time. Either way they are those of training's forward pass, to the bit. (To multiply queries with what widens the
// rows instead, as the paper says for inference, would be another order of sums.) Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "apps/lm/cached_core.h"
#include "apps/lm/key_value_cache.h"
#include "core/layers/latent_core.h"

namespace orthant {

class LatentCache final : public LatentCore {
 public:
  // room: bytes for keys and values of all heads.
  LatentCache(int threads, std::int64_t room) : threads_(threads), room_(room) {}

  // As CachedCore's.
  void hold(std::vector<std::int64_t> windows);
  void begin(std::vector<SequenceRows> rows);
  void forget(int sequence);
  // The narrow rows of page `index` of a sequence in every layer, copied; and a new sequence that begins with such
  // pages, whose keys and values are made of them.
  std::vector<Tensor> page(int sequence, std::int64_t index, Stream& s) const;
  void append(int sequence, const std::vector<Tensor>& page, Stream& s);

  Tensor attend(const Tensor& q, const Tensor& narrow, const Widen& widen, const AttentionShape& shape,
                Stream& s) override;

  std::int64_t taken() const { return taken_; }  // of the room

 private:
  struct Sequence {
    Tensor rows;  // [capacity, w]; zeros behind the last
    std::int64_t length = 0;
    std::shared_ptr<KeyValueCache> wide;  // of all its tokens, or null
  };
  void append(Sequence& sequence, const Tensor& narrow, Stream& s) const;
  bool keep(Sequence& sequence, const SequenceRows& rows, const AttentionShape& shape, DType dtype);

  int threads_;
  std::int64_t room_, taken_ = 0;
  std::vector<std::int64_t> windows_;  // by layer
  std::size_t layer_ = 0;              // of the next call
  std::vector<SequenceRows> rows_;
  std::vector<std::map<int, Sequence>> layers_;
};

}  // namespace orthant
