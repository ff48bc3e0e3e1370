#include "core/layers/ffn.h"

#include "core/arch/decoder.h"
#include "core/arch/param_specs.h"
#include "core/layers/entered.h"

namespace orthant {
namespace {

constexpr Site ffn_enter{Region::ffn, Side::enter}, ffn_leave{Region::ffn, Side::leave};

std::vector<ParamRef> input_matrices(const Parameters& parameters, const std::string& stem, Activation activation) {
  std::vector<ParamRef> refs;
  if (is_gated(activation)) {
    refs.push_back(parameters.ref(stem + ".gate_proj.weight"));
  }
  refs.push_back(parameters.ref(stem + ".up_proj.weight"));
  return refs;
}

}  // namespace

std::vector<ParamSpec> Mlp::parameters(const PartPlace& place) const {
  return ffn_specs(place.settings, place.stem, d_ff_of(place.settings));
}

double Mlp::flops(const Settings& settings, int) const {
  return ffn_flops(settings, d_ff_of(settings));
}

std::unique_ptr<PartLayer> Mlp::make(const PartPlace& place, const Parameters& parameters, const Plan& plan) const {
  return std::make_unique<Ffn>(parameters, place.stem, plan.settings());
}

Ffn::Ffn(const Parameters& parameters, const std::string& stem, const Settings& settings)
    : in_(input_matrices(parameters, stem, settings.model.activation)),
      out_(parameters.ref(stem + ".down_proj.weight")),
      activation_(settings.model.activation) {}

Tensor Ffn::activated(const StepContext& ctx, const Tensor& h) const {
  Tensor a = ctx.device().empty(h.dtype(), {h.dim(0), out_.param().size[1]});
  ctx.stream.activation(a, h, activation_);
  return a;
}

Tensor Ffn::forward(const StepContext& ctx, const Tensor& n, Saved& saved) const {
  const Tensor x = ctx.cross(ffn_enter, n);       // [T, d]
  const Tensor h = linear(ctx, x, in_.weight());  // [T, n]
  const Tensor a = activated(ctx, h);
  Entered::save(ctx, n, x, saved);
  saved.push(h);
  if (ctx.recompute != Recompute::selective) {
    saved.push(a);
  }
  return ctx.cross(ffn_leave, linear(ctx, a, out_.weight()));
}

Tensor Ffn::backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const {
  const bool again = ctx.recompute == Recompute::selective;
  Tensor a = again ? Tensor() : saved.pop();  // [T, f]
  const Tensor h = saved.pop();
  if (again) {
    a = activated(ctx, h);
  }
  const Tensor dy_here = ctx.cross_back(ffn_leave, dy);
  const Entered x(ctx, ffn_enter, in_.wanted_grad().defined(), saved);
  const Tensor da = linear_backward(ctx, dy_here, a, out_.weight(), out_.wanted_grad());
  Tensor dh = ctx.device().empty(h.dtype(), h.shape());
  ctx.stream.activation_backward(dh, da, h, activation_);
  const Tensor dx = linear_backward(ctx, dh, x, in_.weight(), in_.wanted_grad());
  return ctx.cross_back(ffn_enter, dx);
}

}  // namespace orthant
