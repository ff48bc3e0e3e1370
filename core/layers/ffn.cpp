#include "core/layers/ffn.h"

namespace orthant {
namespace {

constexpr Site enter{Region::ffn, Side::enter}, leave{Region::ffn, Side::leave};

std::vector<ParamRef> input_matrices(const ParamStore& store, const std::string& stem, Activation activation) {
  std::vector<ParamRef> refs;
  if (activation == Activation::swiglu) {
    refs.push_back(store.ref(stem + ".gate_proj.weight"));
  }
  refs.push_back(store.ref(stem + ".up_proj.weight"));
  return refs;
}

}  // namespace

Ffn::Ffn(const ParamStore& store, const std::string& stem, const Settings& settings)
    : in_(input_matrices(store, stem, settings.model.activation)),
      out_(store.ref(stem + ".down_proj.weight")),
      activation_(settings.model.activation) {}

Tensor Ffn::activated(const StepContext& ctx, const Tensor& h) const {
  Tensor a = ctx.device().empty(h.dtype(), {h.dim(0), out_.param().size[1]});
  ctx.stream.activation(a, h, activation_);
  return a;
}

Tensor Ffn::forward(const StepContext& ctx, const Tensor& n, Saved& saved) const {
  const Tensor x = ctx.plan.cross(enter, n, ctx.stream);  // [T, d]
  const Tensor h = linear(ctx, x, in_.weight());          // [T, n]
  const Tensor a = activated(ctx, h);
  push(saved, x);
  push(saved, h);
  if (!recomputes_activations(ctx.settings())) {
    push(saved, a);
  }
  return ctx.plan.cross(leave, linear(ctx, a, out_.weight()), ctx.stream);
}

Tensor Ffn::backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const {
  const bool again = recomputes_activations(ctx.settings());
  Tensor a = again ? Tensor() : pop(saved);  // [T, f]
  const Tensor h = pop(saved), x = pop(saved);
  if (again) {
    a = activated(ctx, h);
  }
  const Tensor dy_here = ctx.plan.cross_back(leave, dy, ctx.stream);
  const Tensor da = linear_backward(ctx, dy_here, a, out_.weight(), out_.grad());
  Tensor dh = ctx.device().empty(h.dtype(), h.shape());
  ctx.stream.activation_backward(dh, da, h, activation_);
  const Tensor dx = linear_backward(ctx, dh, x, in_.weight(), in_.grad());
  return ctx.plan.cross_back(enter, dx, ctx.stream);
}

}  // namespace orthant
