// Keys and values of grouped queries, where the attention core divides heads among more ranks than there are key heads:
// neighbouring ranks need the same one.
#pragma once

#include <orthant/ops.h>

namespace orthant {

// x [T, heads c] -> [T, heads repeats c], each head `repeats` times in a row.
Tensor repeat_heads(const Tensor& x, std::int64_t heads, std::int64_t repeats, Stream& s);
// The adjoint: dy [T, heads repeats c] -> [T, heads c], the sum over the copies of each head, in order and in
// f32, whatever dy is.
Tensor repeat_heads_backward(const Tensor& dy, std::int64_t heads, std::int64_t repeats, Stream& s);

}  // namespace orthant
