#include "core/layers/norm.h"

namespace orthant {

Tensor norm_weight(const StepContext& ctx, const Tensor& w) {
  if (w.dtype() == DType::f32) {
    return w;
  }
  Tensor wide = ctx.device().empty(DType::f32, w.shape());
  ctx.stream.cast(wide, w);
  return wide;
}

Tensor norm_factor(const StepContext& ctx, const Tensor& w) {
  if (!ctx.settings().model.norm_plus_one) {
    return norm_weight(ctx, w);
  }
  Tensor factor = ctx.device().empty(DType::f32, w.shape());
  ctx.stream.fill(factor, 1);
  ctx.stream.add(factor, w);
  return factor;
}

Norm::Norm(const ParamStore& store, const std::string& stem, const Settings& settings)
    : weight_(store.ref(stem + ".weight")),
      kind_(settings.model.norm),
      eps_(static_cast<float>(settings.model.norm_eps)) {
  if (kind_ == NormKind::layernorm) {
    bias_ = store.ref(stem + ".bias");
  }
}

Tensor Norm::forward(const StepContext& ctx, const Tensor& x, Saved& saved) const {
  Tensor y = ctx.device().empty(x.dtype(), x.shape());
  Tensor stats = ctx.device().empty(DType::f32, {x.dim(0), 2});
  const Tensor w = norm_factor(ctx, weight_.weight());
  const Tensor b = bias_.has_value() ? norm_weight(ctx, bias_->weight()) : Tensor();
  ctx.stream.norm(y, stats, x, w, b, kind_, eps_);
  saved.push(x);
  saved.push(stats);
  return y;
}

void Norm::backward(const StepContext& ctx, const Tensor& dx, const Tensor& dy, Saved& saved) const {
  const Tensor stats = saved.pop();
  const Tensor x = saved.pop();
  // The operation makes both gradients; one that nobody wants may have no place of its own.
  const auto place_of = [&](const ParamRef& of) {
    if (of.wants_grad()) {
      return of.grad();
    }
    const Tensor dropped = ctx.device().empty(DType::f32, {x.dim(1)});
    ctx.stream.fill(dropped, 0);
    return dropped;
  };
  const Tensor dweight = place_of(weight_), dbias = bias_.has_value() ? place_of(*bias_) : Tensor();
  ctx.stream.norm_backward(dx, dweight, dbias, dy, x, stats, norm_factor(ctx, weight_.weight()), kind_);
}

}  // namespace orthant
