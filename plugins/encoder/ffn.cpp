#include <optional>

#include <orthant/settings.h>
#include <orthant/sizes.h>

#include "activation.h"
#include "layers.h"
#include "settings.h"

namespace orthant::encoder {
namespace {

constexpr Site ffn_enter{Region::ffn, Side::enter}, ffn_leave{Region::ffn, Side::leave};

class EncoderFfn final : public PartLayer {
 public:
  EncoderFfn(const Settings& s, const std::string& stem, const Parameters& parameters)
      : down_(parameters.ref(stem + ".down_proj.weight")),
        activation_(s.model.activation, encoder_keys(s).gelu == GeluForm::exact) {
    std::vector<ParamRef> in;
    if (is_gated(s.model.activation)) {
      in.push_back(parameters.ref(stem + ".gate_proj.weight"));
    }
    in.push_back(parameters.ref(stem + ".up_proj.weight"));
    in_ = ParamMatrix(in);
    if (encoder_keys(s).dense_biases) {
      up_bias_ = parameters.ref(stem + ".up_proj.bias");
      down_bias_ = parameters.ref(stem + ".down_proj.bias");
    }
  }

  Tensor forward(const StepContext& ctx, const Tensor& n, Saved& saved) const override {
    const Tensor x = ctx.cross(ffn_enter, n);
    const Tensor h = linear(ctx, x, in_.weight());  // [T, n]
    if (up_bias_.has_value()) {
      add_bias(ctx, h, row(up_bias_->weight()));
    }
    const Tensor a = activation_.forward(ctx, h);  // [T, f_r]
    saved.push(x);
    saved.push(h);
    if (ctx.recompute != Recompute::selective) {
      saved.push(a);
    }
    Tensor y = ctx.cross(ffn_leave, linear(ctx, a, down_.weight()));
    if (down_bias_.has_value()) {
      add_bias(ctx, y, row(down_bias_->weight()));  // of the whole sum
    }
    return y;
  }

  Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const override {
    const bool again = ctx.recompute == Recompute::selective;
    Tensor a = again ? Tensor() : saved.pop();
    const Tensor h = saved.pop(), x = saved.pop();
    if (again) {
      a = activation_.forward(ctx, h);
    }
    if (down_bias_.has_value()) {
      add_bias_backward(ctx, row(down_bias_->grad()), dy);
    }
    const Tensor dy_here = ctx.cross_back(ffn_leave, dy);
    const Tensor da = linear_backward(ctx, dy_here, a, down_.weight(), down_.wanted_grad());
    const Tensor dh = activation_.backward(ctx, da, h);
    if (up_bias_.has_value()) {
      add_bias_backward(ctx, row(up_bias_->grad()), dh);
    }
    return ctx.cross_back(ffn_enter, linear_backward(ctx, dh, x, in_.weight(), in_.wanted_grad()));
  }

 private:
  static Tensor row(const Tensor& t) { return t.view({1, t.elements()}); }

  ParamMatrix in_;                               // [n, d]: up, or gate and up
  ParamRef down_;                                // [d, f]
  std::optional<ParamRef> up_bias_, down_bias_;  // [f], [d]
  FfnActivation activation_;
};

}  // namespace

bool has_own_ffn(const Settings& s) {
  const EncoderKeys keys = encoder_keys(s);
  return keys.dense_biases || keys.gelu == GeluForm::exact;
}

std::vector<ParamSpec> ffn_parameters(const Settings& s, const std::string& stem) {
  const std::int64_t d = s.model.d_model, f = d_ff_of(s);
  std::vector<ParamSpec> specs;
  const auto add = [&](const char* name, const Shape& shape, int split, float std) {
    specs.push_back({.name = stem + name, .global = shape, .region = Region::ffn, .std = std});
    specs.back().split[split] = Dim::ffn;
  };
  const float std = static_cast<float>(s.model.init_std);
  if (is_gated(s.model.activation)) {
    add(".gate_proj.weight", {f, d}, 0, std);
  }
  add(".up_proj.weight", {f, d}, 0, std);
  add(".down_proj.weight", {d, f}, 1, residual_std(s));
  if (encoder_keys(s).dense_biases) {
    add(".up_proj.bias", {f}, 0, 0);
    specs.back().init = Init::zeros;
    specs.back().decay = false;
    specs.push_back(
        {.name = stem + ".down_proj.bias", .global = {d}, .region = Region::norm, .init = Init::zeros, .decay = false});
  }
  return specs;
}

double own_ffn_flops(const Settings& s) {
  const double matrices = is_gated(s.model.activation) ? 3 : 2;
  return 2 * matrices * static_cast<double>(s.model.d_model) * static_cast<double>(d_ff_of(s));
}

std::unique_ptr<PartLayer> make_ffn(const Settings& s, const std::string& stem, const Parameters& parameters) {
  return std::make_unique<EncoderFfn>(s, stem, parameters);
}

}  // namespace orthant::encoder
