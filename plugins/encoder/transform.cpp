#include <optional>

#include <orthant/settings.h>
#include <orthant/sizes.h>

#include "activation.h"
#include "chain.h"
#include "layers.h"
#include "settings.h"

namespace orthant::encoder {
namespace {

constexpr Site attention_enter{Region::attention, Side::enter}, attention_leave{Region::attention, Side::leave};
constexpr Site core_enter{Region::attention_core, Side::enter}, core_leave{Region::attention_core, Side::leave};

Tensor zeros_like(const StepContext& ctx, const Tensor& t) {
  Tensor zeros = ctx.device().empty(t.dtype(), t.shape());
  ctx.stream.fill(zeros, 0);
  return zeros;
}

// W x of each token.
class OfTokens final : public PartLayer {
 public:
  explicit OfTokens(const ParamRef& weight) : weight_(weight) {}
  Tensor forward(const StepContext& ctx, const Tensor& x, Saved& saved) const override {
    saved.push(x);
    return linear(ctx, x, weight_.weight());
  }
  Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const override {
    return linear_backward(ctx, dy, saved.pop(), weight_.weight(), weight_.wanted_grad());
  }

 private:
  ParamRef weight_;  // [d, d]
};

// W m, with m the mean of x over the token's text: attention whose scores are all 0. So it runs wherever attention
// does, whatever divides positions and heads; the "heads" are runs of x's channels.
class OfMeans final : public PartLayer {
 public:
  OfMeans(const ParamRef& weight, const Plan& plan) : weight_(weight) {
    const Settings& s = plan.settings();
    width_ = s.model.d_model / s.model.heads;
    channels_ = weight_.param().size[1];
    parts_ = s.model.d_model / channels_;
    part_ = weight_.param().offset[1] / channels_;
    Param in_core{.spec = weight_.param().spec};
    in_core.spec.region = Region::attention_core;
    plan.place(in_core);
    core_heads_ = in_core.size[1] / width_;
    windows_ = s.model.full_attention_every > 0;
  }

  Tensor forward(const StepContext& ctx, const Tensor& x, Saved& saved) const override {
    const Tensor v = ctx.cross(core_enter, own_channels(ctx, ctx.cross(attention_enter, x)));
    const Tensor none = zeros_like(ctx, v);
    Tensor m = ctx.plan.attention_core().forward(none, none, v, seen(ctx), {}, shape(ctx), saved, ctx.stream);
    m = ctx.cross(core_leave, m);  // [T, d_r]
    saved.push(m);
    return ctx.cross(attention_leave, linear(ctx, m, weight_.weight()));
  }

  Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const override {
    const Tensor m = saved.pop();
    const Tensor dy_here = ctx.cross_back(attention_leave, dy);
    const Tensor dm = linear_backward(ctx, dy_here, m, weight_.weight(), weight_.wanted_grad());
    const AttentionCore::Gradients g = ctx.plan.attention_core().backward(ctx.cross_back(core_leave, dm), seen(ctx), {},
                                                                          shape(ctx), saved, ctx.stream);
    return ctx.cross_back(attention_enter, all_channels(ctx, ctx.cross_back(core_enter, g.dv)));
  }

 private:
  // The whole text, whatever window the blocks have.
  const Tensor& seen(const StepContext& ctx) const {
    return windows_ ? ctx.batch.core_first_full : ctx.batch.core_first;
  }
  AttentionShape shape(const StepContext& ctx) const {
    AttentionShape shape{.batch = ctx.batch.sequences,
                         .positions = ctx.batch.core_positions,
                         .heads = core_heads_,
                         .kv_heads = core_heads_,
                         .head_dim = width_};
    shape.space = shape.kv_space = ctx.space;
    return shape;
  }
  // [T, d] -> the columns of this rank's heads [T, d_r]; and back, with zeros in the others' places.
  Tensor own_channels(const StepContext& ctx, const Tensor& x) const {
    if (parts_ == 1) {
      return x;
    }
    const Tensor by_part = ctx.device().empty(x.dtype(), {parts_, x.dim(0), channels_});
    ctx.stream.swap_outer(by_part, x.view({x.dim(0), parts_, channels_}));
    return by_part.rows(part_, 1).view({x.dim(0), channels_});
  }
  Tensor all_channels(const StepContext& ctx, const Tensor& own) const {
    if (parts_ == 1) {
      return own;
    }
    const std::int64_t tokens = own.dim(0);
    const Tensor by_part = ctx.device().empty(own.dtype(), {parts_, tokens, channels_});
    ctx.stream.fill(by_part, 0);
    ctx.stream.copy(by_part.rows(part_, 1), own);
    Tensor x = ctx.device().empty(own.dtype(), {tokens, parts_ * channels_});
    ctx.stream.swap_outer(x.view({tokens, parts_, channels_}), by_part);
    return x;
  }

  ParamRef weight_;  // [d, d_r]
  std::int64_t width_ = 0, channels_ = 0, parts_ = 1, part_ = 0, core_heads_ = 0;
  bool windows_ = false;
};

class Transform final : public Layer {
 public:
  Transform(const Parameters& parameters, const Plan& plan) {
    const Settings& s = plan.settings();
    const EncoderKeys keys = encoder_keys(s);
    const std::string stem = transform_stem;
    const ParamRef weight = parameters.ref(stem + ".weight");
    product_ = keys.pooling == Pooling::mean ? std::unique_ptr<PartLayer>(std::make_unique<OfMeans>(weight, plan))
                                             : std::make_unique<OfTokens>(weight);
    if (keys.dense_biases) {
      bias_ = parameters.ref(stem + ".bias");
    }
    activation_.emplace(is_gated(s.model.activation) ? Activation::gelu : s.model.activation,
                        keys.gelu == GeluForm::exact);
  }

  Bundle forward(const StepContext& ctx, const Bundle& x, Saved& saved) override {
    const Tensor h = product_->forward(ctx, x.front(), saved);
    if (bias_.has_value()) {
      add_bias(ctx, h, bias_->weight().view({1, h.dim(1)}));
    }
    saved.push(h);
    return {activation_->forward(ctx, h)};
  }
  Bundle backward(const StepContext& ctx, const Bundle& dy, Saved& saved) override {
    const Tensor h = saved.pop(), dh = activation_->backward(ctx, dy.front(), h);
    if (bias_.has_value() && bias_->wants_grad()) {
      add_bias_backward(ctx, bias_->grad().view({1, dh.dim(1)}), dh);
    }
    return {product_->backward(ctx, dh, saved)};
  }

 private:
  std::unique_ptr<PartLayer> product_;
  std::optional<ParamRef> bias_;
  std::optional<FfnActivation> activation_;
};

}  // namespace

std::vector<ParamSpec> transform_parameters(const Settings& s) {
  const EncoderKeys keys = encoder_keys(s);
  const std::int64_t d = s.model.d_model;
  const std::string stem = transform_stem;
  ParamSpec weight{
      .name = stem + ".weight", .global = {d, d}, .region = Region::norm, .std = static_cast<float>(s.model.init_std)};
  if (keys.pooling == Pooling::mean) {
    weight.region = Region::attention;
    weight.split[1] = Dim::head;
    weight.units[1] = s.model.heads;
  }
  std::vector<ParamSpec> specs = {weight};
  if (keys.dense_biases) {
    specs.push_back(
        {.name = stem + ".bias", .global = {d}, .region = Region::norm, .init = Init::zeros, .decay = false});
  }
  return specs;
}

double transform_flops(const Settings& s) {
  const double d = static_cast<double>(s.model.d_model);
  const bool mean = encoder_keys(s).pooling == Pooling::mean;
  return 2 * d * d + (mean ? 4 * d * static_cast<double>(s.data.sequence_length) : 0);
}

std::unique_ptr<Layer> make_transform(const Parameters& parameters, const Plan& plan) {
  return std::make_unique<Transform>(parameters, plan);
}

}  // namespace orthant::encoder
