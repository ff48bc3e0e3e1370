#include "core/layers/ffn.h"

namespace orthant {
namespace {

constexpr Site enter{Region::ffn, Side::enter}, leave{Region::ffn, Side::leave};

}  // namespace

Ffn::Ffn(ParamGroup& group, std::size_t index, const Settings& settings)
    : group_(group),
      first_(index),
      out_(index + (settings.model.activation == Activation::swiglu ? 2 : 1)),
      activation_(settings.model.activation) {}

Tensor Ffn::in(const Tensor& flat) const {
  const Param& first = group_.params[first_];
  return flat.slice(first.begin, {static_cast<std::int64_t>(out_ - first_) * first.size[0], first.size[1]});
}

Tensor Ffn::forward(const StepContext& ctx, const Tensor& n, Saved& saved) const {
  const Tensor x = ctx.plan.cross(enter, n, ctx.stream);  // [T, d]
  const Tensor h = linear(ctx, x, in(group_.weight));     // [T, n]
  Tensor a = ctx.device().empty(x.dtype(), {x.dim(0), group_.params[out_].size[1]});
  ctx.stream.activation(a, h, activation_);
  push(saved, x);
  push(saved, h);
  push(saved, a);
  return ctx.plan.cross(leave, linear(ctx, a, group_.weight_of(group_.params[out_])), ctx.stream);
}

Tensor Ffn::backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const {
  const Param& out = group_.params[out_];
  const Tensor a = pop(saved), h = pop(saved), x = pop(saved);
  const Tensor dy_here = ctx.plan.cross_back(leave, dy, ctx.stream);
  const Tensor da = linear_backward(ctx, dy_here, a, group_.weight_of(out), group_.grad_of(out));
  Tensor dh = ctx.device().empty(h.dtype(), h.shape());
  ctx.stream.activation_backward(dh, da, h, activation_);
  const Tensor dx = linear_backward(ctx, dh, x, in(group_.weight), in(group_.grad));
  return ctx.plan.cross_back(enter, dx, ctx.stream);
}

}  // namespace orthant
