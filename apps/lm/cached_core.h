// CachedCore: attention of tokens to the keys and values of all that came before them in their sequences.
//
// Bound in place of a plan's attention core. The rows of a forward pass are tokens of any sequences, told by begin().
// The cache lies in the host's memory; on a device with memory of its own every layer waits for the host.
// Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include <orthant/seams.h>

#include "apps/lm/key_value_cache.h"

namespace orthant {

// Rows [row, row + rows) of a forward pass: the next tokens of a sequence.
struct SequenceRows {
  int sequence = 0;
  std::int64_t row = 0, rows = 0, position = 0;
};

class CachedCore final : public AttentionCore {
 public:
  explicit CachedCore(int threads);

  // Before the first pass. windows: as model.sliding_window, of the layers that a pass meets, in its order.
  void hold(std::vector<std::int64_t> windows);

  // Before each forward pass. No rows: its sequences are whole, and attend to themselves as in training.
  void begin(std::vector<SequenceRows> rows);
  void forget(int sequence);
  // Page `index` of a sequence in every layer, shared; and a new sequence that begins with such pages.
  std::vector<KeyValueCache> page(int sequence, std::int64_t index) const;
  void append(int sequence, const std::vector<KeyValueCache>& page);

  // first is not looked at where there are rows: sequences are documents of their own.
  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& first, const HeadSinks& sinks,
                 const AttentionShape& shape, Saved& saved, Stream& s) override;
  // Errors: Error; there is nothing to train here.
  Gradients backward(const Tensor& d_o, const Tensor& first, const HeadSinks& sinks, const AttentionShape& shape,
                     Saved& saved, Stream& s) override;

 private:
  std::unique_ptr<AttentionCore> whole_;
  std::vector<std::int64_t> windows_;  // by layer
  int threads_;
  std::size_t layer_ = 0;  // of the next call
  std::vector<SequenceRows> rows_;
  std::vector<std::map<int, KeyValueCache>> layers_;  // by sequence
};

}  // namespace orthant
