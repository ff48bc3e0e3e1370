#include "core/layers/head_parts.h"

#include <numeric>

namespace orthant {
namespace {

// Channels are moved in blocks of this width: [rows, blocks, width] becomes [blocks, rows, width], where the parts of a
// head lie one behind the other.
std::int64_t block_width(std::int64_t first, std::int64_t second) {
  return std::gcd(first, second);
}

void swap(const Tensor& to, const Tensor& from, Shape from_shape, Stream& s) {
  s.swap_outer(to.view({from_shape[1], from_shape[0], from_shape[2]}), from.view(from_shape));
}

}  // namespace

std::pair<Tensor, Tensor> split_heads(const Tensor& x, std::int64_t heads, std::int64_t first, std::int64_t second,
                                      Stream& s) {
  if (second == 0) {
    return {x, {}};
  }
  const std::int64_t width = block_width(first, second), blocks = first / width, others = second / width;
  const std::int64_t tokens = x.dim(0), rows = tokens * heads;
  const Tensor by_block = s.device().empty(x.dtype(), {blocks + others, rows, width});
  swap(by_block, x, {rows, blocks + others, width}, s);
  const Tensor a = s.device().empty(x.dtype(), {tokens, heads * first});
  const Tensor b = s.device().empty(x.dtype(), {tokens, heads * second});
  swap(a, by_block.rows(0, blocks), {blocks, rows, width}, s);
  swap(b, by_block.rows(blocks, others), {others, rows, width}, s);
  return {a, b};
}

Tensor join_heads(const Tensor& a, const Tensor& b, std::int64_t heads, std::int64_t first, std::int64_t second,
                  Stream& s) {
  if (second == 0) {
    return a;
  }
  const std::int64_t width = block_width(first, second), blocks = first / width, others = second / width;
  const std::int64_t tokens = a.dim(0), rows = tokens * heads;
  const Tensor by_block = s.device().empty(a.dtype(), {blocks + others, rows, width});
  swap(by_block.rows(0, blocks), a, {rows, blocks, width}, s);
  if (b.defined()) {
    swap(by_block.rows(blocks, others), b, {rows, others, width}, s);
  } else {
    s.fill(by_block.rows(blocks, others), 0);
  }
  const Tensor joined = s.device().empty(a.dtype(), {tokens, heads * (first + second)});
  swap(joined, by_block, {blocks + others, rows, width}, s);
  return joined;
}

}  // namespace orthant
