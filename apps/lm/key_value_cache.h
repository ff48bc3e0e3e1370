// KeyValueCache: the keys and values of one sequence in one layer, and attention of its further tokens to them.
//
// What a token gets has the bits of Stream::attention on the whole sequence, in whatever portions it was fed: the tiles
// are the same, and a query's result does not depend on the others of its tile (attention_tiles.h).
// Source of blocks of positions: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
// PagedAttention" (2023).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <orthant/tensor.h>

namespace orthant {

// Thread safety: calls for different key heads at once; grow() alone.
class KeyValueCache {
 public:
  // dtype: of the model's keys and values, f32 or bf16. They lie as attention multiplies that type (attention_items.h):
  // bf16 takes half as much where the processor multiplies its pairs.
  KeyValueCache(std::int64_t kv_heads, std::int64_t head_dim, DType dtype);

  DType dtype() const { return dtype_; }
  std::int64_t length() const { return length_; }
  // Of memory, shared pages counted: now, and of a cache for so many tokens.
  std::int64_t bytes() const { return bytes_of(length_); }
  std::int64_t bytes_of(std::int64_t tokens) const;
  // Makes room for `rows` further tokens, whose keys and values are to be put before anything attends to them.
  // Errors: std::bad_alloc; then nothing has changed.
  void grow(std::int64_t rows);
  // Positions come in pages of so many: a full one never changes, and may be shared.
  static constexpr std::int64_t page_tokens = 64;
  // A cache of page `index` alone, which both then have. REQUIRES: all of its positions have been put.
  KeyValueCache page(std::int64_t index) const;
  // Goes on with all pages of another, which both then have. Errors: Error unless both end with a full page and are of
  // one shape.
  void append(const KeyValueCache& pages);
  // Those of one key head for positions [at, at + rows): k and v point at the head's channels of the first token, whose
  // next lies `stride` on, and are numbers of dtype.
  void put(std::int64_t kv_head, std::int64_t at, std::int64_t rows, const float* k, const float* v,
           std::int64_t stride);
  // Of 64 positions from j0 on (a multiple of 64), for one key head: items of keys [c_items, 64], and of values [64 /
  // steps, head_dim padded]; zeros where no token is yet.
  const float* keys(std::int64_t kv_head, std::int64_t j0) const;
  const float* values(std::int64_t kv_head, std::int64_t j0) const;

 private:
  std::int64_t block_floats() const;
  float* block(std::int64_t kv_head, std::int64_t j0) const;

  std::int64_t kv_heads_, head_dim_;
  DType dtype_;
  std::int64_t keys_, values_;  // floats of a head's block
  std::int64_t length_ = 0;
  std::vector<std::shared_ptr<float>> blocks_;
};

// Rows [row, row + rows) of q, k and v are the next tokens of a sequence, from `position` on.
struct CachedRows {
  KeyValueCache* cache;
  std::int64_t row, rows, position;
};

// Puts the rows' keys and values and attends: o, q [T, heads c], lse [heads, T], k, v [T, kv_heads c]. q, k and v are
// numbers of the caches' dtype, given as fp32; o is to be rounded to it. Rows that no run names become 0 in o and lse.
// window: tokens that a token sees, itself included; 0: all before it. softcap: AttentionShape's. Errors: Error for
// sizes that do not fit each other, caches of several dtypes, and one that has not grown by its rows.
void cached_attention(int threads, std::span<float> o, std::span<float> lse, std::span<const float> q,
                      std::span<const float> k, std::span<const float> v, std::span<const CachedRows> runs,
                      std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim, std::int64_t window,
                      float softcap = 0);

}  // namespace orthant
