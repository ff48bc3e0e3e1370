#include "vit_mlp.h"

#include <vector>

#include <orthant/settings.h>
#include <orthant/sizes.h>

namespace orthant::images {
namespace {

constexpr Site ffn_enter{Region::ffn, Side::enter}, ffn_leave{Region::ffn, Side::leave};

class Biased final : public PartLayer {
 public:
  Biased(const PartPlace& place, const Parameters& parameters)
      : in_(parameters.ref(place.stem + ".up_proj.weight")),
        in_bias_(parameters.ref(place.stem + ".up_proj.bias")),
        out_(parameters.ref(place.stem + ".down_proj.weight")),
        out_bias_(parameters.ref(place.stem + ".down_proj.bias")),
        activation_(place.settings.model.activation) {}

  Tensor forward(const StepContext& ctx, const Tensor& n, Saved& saved) const override {
    const Tensor x = ctx.cross(ffn_enter, n);
    const Tensor h = linear(ctx, x, in_.weight());
    add_bias(ctx, h, row(in_bias_.weight()));
    saved.push(x);
    saved.push(h);
    const Tensor y = ctx.cross(ffn_leave, linear(ctx, activated(ctx, h), out_.weight()));
    add_bias(ctx, y, row(out_bias_.weight()));
    return y;
  }
  Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const override {
    const Tensor h = saved.pop(), x = saved.pop();
    if (out_bias_.wants_grad()) {
      add_bias_backward(ctx, row(out_bias_.grad()), dy);
    }
    const Tensor dy_here = ctx.cross_back(ffn_leave, dy);
    const Tensor da = linear_backward(ctx, dy_here, activated(ctx, h), out_.weight(), out_.wanted_grad());
    const Tensor dh = ctx.device().empty(h.dtype(), h.shape());
    ctx.stream.activation_backward(dh, da, h, activation_);
    if (in_bias_.wants_grad()) {
      add_bias_backward(ctx, row(in_bias_.grad()), dh);
    }
    return ctx.cross_back(ffn_enter, linear_backward(ctx, dh, x, in_.weight(), in_.wanted_grad()));
  }

 private:
  static Tensor row(const Tensor& bias) { return bias.view({1, bias.elements()}); }
  Tensor activated(const StepContext& ctx, const Tensor& h) const {
    const Tensor a = ctx.device().empty(h.dtype(), h.shape());
    ctx.stream.activation(a, h, activation_);
    return a;
  }

  ParamRef in_, in_bias_, out_, out_bias_;  // [f, d], [f], [d, f], [d]
  Activation activation_;
};

class VitMlp final : public FfnPart {
 public:
  std::vector<Refusal> refusals(const Settings& s) const override {
    if (!is_gated(s.model.activation)) {
      return {};
    }
    return {{{"model.activation"}, "[model] activation: \"vit_mlp\" has no gate", "write \"gelu\" or \"relu\""}};
  }
  std::vector<ParamSpec> parameters(const PartPlace& place) const override {
    const Settings& s = place.settings;
    const std::int64_t d = s.model.d_model, f = d_ff_of(s);
    const auto spec = [&](const char* name, Shape shape, Region region) {
      return ParamSpec{.name = place.stem + name, .global = shape, .region = region};
    };
    ParamSpec in = spec(".up_proj.weight", {f, d}, Region::ffn), out = spec(".down_proj.weight", {d, f}, Region::ffn);
    ParamSpec in_bias = spec(".up_proj.bias", {f}, Region::ffn);
    in.split[0] = in_bias.split[0] = out.split[1] = Dim::ffn;
    in.std = static_cast<float>(s.model.init_std);
    out.std = residual_std(s);
    // It is added to the whole sum over channels.
    ParamSpec out_bias = spec(".down_proj.bias", {d}, Region::norm);
    for (ParamSpec* bias : {&in_bias, &out_bias}) {
      bias->init = Init::zeros;
      bias->decay = false;
    }
    return {in, out, in_bias, out_bias};
  }
  double flops(const Settings& s, int) const override {
    return 4 * static_cast<double>(s.model.d_model) * static_cast<double>(d_ff_of(s));
  }
  std::unique_ptr<PartLayer> make(const PartPlace& place, const Parameters& parameters, const Plan&) const override {
    return std::make_unique<Biased>(place, parameters);
  }
};

}  // namespace

std::shared_ptr<const FfnPart> make_vit_mlp() {
  return std::make_shared<VitMlp>();
}

}  // namespace orthant::images
