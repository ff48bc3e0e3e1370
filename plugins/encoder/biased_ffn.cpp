#include <orthant/settings.h>
#include <orthant/sizes.h>

#include "layers.h"

namespace orthant::encoder {
namespace {

constexpr Site ffn_enter{Region::ffn, Side::enter}, ffn_leave{Region::ffn, Side::leave};

class BiasedFfn final : public PartLayer {
 public:
  BiasedFfn(const std::string& stem, Activation activation, const Parameters& parameters)
      : up_(parameters.ref(stem + ".up_proj.weight")),
        up_bias_(parameters.ref(stem + ".up_proj.bias")),
        down_(parameters.ref(stem + ".down_proj.weight")),
        down_bias_(parameters.ref(stem + ".down_proj.bias")),
        activation_(activation) {}

  Tensor forward(const StepContext& ctx, const Tensor& n, Saved& saved) const override {
    const Tensor x = ctx.cross(ffn_enter, n);
    const Tensor h = linear(ctx, x, up_.weight());  // [T, f_r]
    add_bias(ctx, h, row(up_bias_.weight()));
    const Tensor a = activated(ctx, h);
    for (const Tensor& t : {x, h}) {
      saved.push(t);
    }
    if (ctx.recompute != Recompute::selective) {
      saved.push(a);
    }
    const Tensor y = ctx.cross(ffn_leave, linear(ctx, a, down_.weight()));
    add_bias(ctx, y, row(down_bias_.weight()));  // of the whole sum
    return y;
  }

  Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const override {
    const bool again = ctx.recompute == Recompute::selective;
    Tensor a = again ? Tensor() : saved.pop();
    const Tensor h = saved.pop(), x = saved.pop();
    if (again) {
      a = activated(ctx, h);
    }
    add_bias_backward(ctx, row(down_bias_.grad()), dy);
    const Tensor dy_here = ctx.cross_back(ffn_leave, dy);
    const Tensor da = linear_backward(ctx, dy_here, a, down_.weight(), down_.wanted_grad());
    const Tensor dh = ctx.device().empty(h.dtype(), h.shape());
    ctx.stream.activation_backward(dh, da, h, activation_);
    add_bias_backward(ctx, row(up_bias_.grad()), dh);
    return ctx.cross_back(ffn_enter, linear_backward(ctx, dh, x, up_.weight(), up_.wanted_grad()));
  }

 private:
  static Tensor row(const Tensor& t) { return t.view({1, t.elements()}); }
  Tensor activated(const StepContext& ctx, const Tensor& h) const {
    const Tensor a = ctx.device().empty(h.dtype(), h.shape());
    ctx.stream.activation(a, h, activation_);
    return a;
  }

  ParamRef up_, up_bias_;      // [f, d], [f]
  ParamRef down_, down_bias_;  // [d, f], [d]
  Activation activation_;
};

}  // namespace

std::vector<ParamSpec> biased_ffn_parameters(const Settings& s, const std::string& stem) {
  const std::int64_t d = s.model.d_model, f = d_ff_of(s);
  ParamSpec up{.name = stem + ".up_proj.weight",
               .global = {f, d},
               .region = Region::ffn,
               .std = static_cast<float>(s.model.init_std)};
  up.split[0] = Dim::ffn;
  ParamSpec up_bias{
      .name = stem + ".up_proj.bias", .global = {f}, .region = Region::ffn, .init = Init::zeros, .decay = false};
  up_bias.split[0] = Dim::ffn;
  ParamSpec down{.name = stem + ".down_proj.weight", .global = {d, f}, .region = Region::ffn, .std = residual_std(s)};
  down.split[1] = Dim::ffn;
  ParamSpec down_bias{
      .name = stem + ".down_proj.bias", .global = {d}, .region = Region::norm, .init = Init::zeros, .decay = false};
  return {up, down, up_bias, down_bias};
}

double biased_ffn_flops(const Settings& s) {
  return 4 * static_cast<double>(s.model.d_model) * static_cast<double>(d_ff_of(s));
}

std::unique_ptr<PartLayer> make_biased_ffn(const Settings& s, const std::string& stem, const Parameters& parameters) {
  return std::make_unique<BiasedFfn>(stem, s.model.activation, parameters);
}

}  // namespace orthant::encoder
