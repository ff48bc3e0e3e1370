// Heads of two parts: taken apart, and put together.
#pragma once

#include <cstdint>
#include <utility>

#include <orthant/ops.h>

namespace orthant {

// x f [T, heads (first + second)], each head's first channels before its others -> [T, heads first], [T, heads second].
// The second is undefined where it would have no channel.
std::pair<Tensor, Tensor> split_heads(const Tensor& x, std::int64_t heads, std::int64_t first, std::int64_t second,
                                      Stream& s);

// The inverse, which is also the adjoint: a f [T, heads first], b [T, heads second] -> [T, heads (first + second)].
// b undefined: zeros. With second = 0 it is `a` itself.
Tensor join_heads(const Tensor& a, const Tensor& b, std::int64_t heads, std::int64_t first, std::int64_t second,
                  Stream& s);

}  // namespace orthant
