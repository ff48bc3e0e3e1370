// Attention whose scores have a learned bias for each head and distance, on the host: softmax(scale QK' + B)V, where
// B[i, j] is the table's entry for the bucket of j - i. Distances up to half of the buckets have one each, larger ones
// share them logarithmically (Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
// Transformer", 2020, section 2.1).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <orthant/ops.h>

namespace orthant::encoder_decoder {

struct RelativeShape {
  std::int64_t sequences = 0, positions = 0, heads = 0, channels = 0;
  std::int64_t buckets = 0, distance = 0;
  std::int64_t first_head = 0, table_heads = 0;  // of the table [buckets, table_heads], where this rank's heads begin
  float scale = 1;
  bool both_ways = false;
};

// The bucket of a key `distance` places behind a query; before it: negative.
std::int64_t bucket_of(std::int64_t distance, std::int64_t buckets, std::int64_t farthest, bool both_ways);

// q, k, v, o, d_o, dq, dk and dv f32 [T, h c]; lse f32 [T, h]; table and dtable f32 [buckets, table_heads].
// seen: which keys of its sequence a token sees, as for Stream::attention; undefined: those before it, and itself.
void relative_attention(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& table, const Tensor& seen, const RelativeShape& shape, Stream& s);

// Keys and values of a sequence's tokens so far, in one block: [tokens, h c] each.
struct KeptKeys {
  std::vector<float> k, v;
};
// Rows [row, row + rows) of a pass are the next tokens of a sequence, from `position` on.
struct KeptRows {
  std::shared_ptr<KeptKeys> kept;
  std::int64_t row = 0, rows = 0, position = 0;
};
// The same for further tokens of sequences that begin with their first: puts the rows' keys and values, and attends. o,
// q, k, v f32 [T, h c]; rows that nobody names become 0 in o. REQUIRES: not shape.both_ways. A row has the bits of
// relative_attention on the whole sequence.
void relative_attention_step(const Tensor& o, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& table,
                             const std::vector<KeptRows>& rows, const RelativeShape& shape, Stream& s);
// dtable += ; undefined: nobody wants it.
void relative_attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dtable,
                                 const Tensor& d_o, const Tensor& q, const Tensor& k, const Tensor& v,
                                 const Tensor& lse, const Tensor& table, const Tensor& seen, const RelativeShape& shape,
                                 Stream& s);

}  // namespace orthant::encoder_decoder
