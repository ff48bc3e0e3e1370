#include "core/layers/norm.h"

namespace orthant {
namespace {

// Norm weights are read in fp32 whatever the compute dtype: a few numbers, used in every token.
Tensor as_f32(const StepContext& ctx, const Tensor& w) {
  if (w.dtype() == DType::f32) {
    return w;
  }
  Tensor wide = ctx.device().empty(DType::f32, w.shape());
  ctx.stream.cast(wide, w);
  return wide;
}

}  // namespace

Tensor Norm::forward(const StepContext& ctx, const Tensor& x, Saved& saved) const {
  Tensor y = ctx.device().empty(x.dtype(), x.shape());
  Tensor stats = ctx.device().empty(DType::f32, {x.dim(0), 2});
  const Tensor w = as_f32(ctx, group_.weight_of(group_.params[index_]));
  Tensor b;
  if (kind_ == NormKind::layernorm) {
    b = as_f32(ctx, group_.weight_of(group_.params[index_ + 1]));
  }
  ctx.stream.norm(y, stats, x, w, b, kind_, eps_);
  push(saved, x);
  push(saved, stats);
  return y;
}

void Norm::backward(const StepContext& ctx, const Tensor& dx, const Tensor& dy, Saved& saved) const {
  const Tensor stats = pop(saved);
  const Tensor x = pop(saved);
  Tensor dbias;
  if (kind_ == NormKind::layernorm) {
    dbias = group_.grad_of(group_.params[index_ + 1]);
  }
  const Tensor w = as_f32(ctx, group_.weight_of(group_.params[index_]));
  ctx.stream.norm_backward(dx, group_.grad_of(group_.params[index_]), dbias, dy, x, stats, w, kind_);
}

}  // namespace orthant
