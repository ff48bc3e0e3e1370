#include "core/layers/repeat_heads.h"

namespace orthant {
namespace {

// [I, J, c] -> [J, I, c].
Tensor swapped(const Tensor& x, Shape shape, Stream& s) {
  Tensor to = s.device().empty(x.dtype(), {shape[1], shape[0], shape[2]});
  s.swap_outer(to, x.view(shape));
  return to;
}

}  // namespace

Tensor repeat_heads(const Tensor& x, std::int64_t heads, std::int64_t repeats, Stream& s) {
  if (repeats == 1) {
    return x;
  }
  const std::int64_t tokens = x.dim(0), c = x.dim(1) / heads;
  const Tensor by_head = swapped(x, {tokens, heads, c}, s).view({heads * tokens, c});
  std::vector<RowRun> runs;
  for (std::int64_t copy = 0; copy < heads * repeats; ++copy) {
    runs.push_back({copy / repeats * tokens, copy * tokens, tokens});
  }
  Tensor copies = s.device().empty(x.dtype(), {heads * repeats * tokens, c});
  s.copy_rows(copies, by_head, runs);
  return swapped(copies, {heads * repeats, tokens, c}, s).view({tokens, heads * repeats * c});
}

Tensor repeat_heads_backward(const Tensor& dy, std::int64_t heads, std::int64_t repeats, Stream& s) {
  if (repeats == 1) {
    return dy;
  }
  const std::int64_t tokens = dy.dim(0), c = dy.dim(1) / (heads * repeats);
  const Tensor copies = swapped(dy, {tokens, heads * repeats, c}, s).view({heads * repeats * tokens, c});
  // In f32: sums of bf16 numbers would be rounded once a copy.
  const Tensor sum = s.device().empty(DType::f32, {heads * tokens, c});
  s.fill(sum, 0);
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t copy = 0; copy < repeats; ++copy) {
      s.add(sum.rows(head * tokens, tokens), copies.rows((head * repeats + copy) * tokens, tokens));
    }
  }
  Tensor rounded = sum;
  if (dy.dtype() != DType::f32) {
    rounded = s.device().empty(dy.dtype(), sum.shape());
    s.cast(rounded, sum);
  }
  return swapped(rounded, {heads, tokens, c}, s).view({tokens, heads * c});
}

}  // namespace orthant
