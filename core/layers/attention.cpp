#include "core/layers/attention.h"

#include <algorithm>
#include <cmath>

#include "core/arch/decoder.h"
#include "core/arch/param_specs.h"
#include "core/arch/rotary.h"
#include "core/layers/entered.h"
#include "core/layers/norm.h"
#include "core/layers/repeat_heads.h"

namespace orthant {
namespace {

constexpr Site attention_enter{Region::attention, Side::enter}, attention_leave{Region::attention, Side::leave};
constexpr Site core_enter{Region::attention_core, Side::enter}, core_leave{Region::attention_core, Side::leave};

// Where the heads that a rank has in the core begin among those that it has outside.
std::int64_t first_core_head(const Plan& plan, std::int64_t heads) {
  const std::vector<AxisId> outside = plan.axes_of(Dim::head, Region::attention);
  Range range{0, heads};
  for (const AxisId axis : plan.axes_of(Dim::head, Region::attention_core)) {
    if (std::find(outside.begin(), outside.end(), axis) == outside.end()) {
      range.count /= plan.mesh().axes()[axis].size;
      range.begin += range.count * plan.mesh().coordinate(axis);
    }
  }
  return range.begin;
}

}  // namespace

double keys_seen(const Settings& s, int block) {
  const double length = static_cast<double>(s.data.sequence_length);
  const double window = block_has_window(s, block) ? static_cast<double>(s.model.sliding_window) : length;
  return window < length ? window * (1 - window / (2 * length)) : length / 2;
}

const Tensor& first_seen(const DeviceBatch& batch, const Settings& s, bool window) {
  return window || s.model.full_attention_every == 0 ? batch.core_first : batch.core_first_full;
}

double query_scale(const ModelSettings& m, std::int64_t head_dim) {
  return m.attention_scale > 0 ? m.attention_scale * std::sqrt(static_cast<double>(head_dim)) : 1;
}

std::vector<ParamSpec> MultiHeadAttention::parameters(const PartPlace& place) const {
  const Settings& s = place.settings;
  const auto keys = read_keys<MultiHeadKeys>(s.model.own);
  const std::int64_t c = head_dim_of(s), d = s.model.d_model, h = s.model.heads, kv = kv_heads_of(s);
  std::vector<ParamSpec> specs;
  auto by_head = [&](ParamSpec p, std::int64_t heads) {
    p.split[0] = Dim::head;
    p.units[0] = heads;
    p.repeats = heads < h;
    specs.push_back(p);
  };
  auto projection = [&](const char* name, std::int64_t heads) {
    by_head(matrix_spec(place.stem + name, Region::attention, heads * c, d, base_std(s)), heads);
  };
  projection(".q_proj.weight", h);
  projection(".k_proj.weight", kv);
  projection(".v_proj.weight", kv);
  ParamSpec o = matrix_spec(place.stem + ".o_proj.weight", Region::attention, d, h * c, residual_std(s));
  o.split[1] = Dim::head;
  o.units[1] = h;
  specs.push_back(o);
  auto vector = [&](const char* name, std::int64_t n, Init init) {
    return ParamSpec{
        .name = place.stem + name, .global = {n}, .region = Region::attention, .init = init, .decay = false};
  };
  if (keys.biases) {
    by_head(vector(".q_proj.bias", h * c, Init::zeros), h);
    by_head(vector(".k_proj.bias", kv * c, Init::zeros), kv);
    by_head(vector(".v_proj.bias", kv * c, Init::zeros), kv);
  }
  if (keys.qk_norm && keys.qk_norm_over == QkNormOver::all) {
    // A mean over all heads makes one unit of them: a layout that divides it is refused.
    by_head(vector(".q_norm.weight", h * c, norm_init(s)), 1);
    specs.back().repeats = false;
    by_head(vector(".k_norm.weight", kv * c, norm_init(s)), 1);
    specs.back().repeats = false;
  } else if (keys.qk_norm) {
    // One weight for all heads: a rank has the part of its gradient that its heads make.
    for (const char* name : {".q_norm.weight", ".k_norm.weight"}) {
      by_head(vector(name, c, norm_init(s)), 1);
      specs.back().repeats = true;
    }
  }
  if (keys.attention_sinks) {
    by_head(vector(".sinks", h, Init::zeros), h);
  }
  if (keys.output_bias) {
    // It is added to the whole sum over heads.
    specs.push_back(vector(".o_proj.bias", d, Init::zeros));
    specs.back().region = Region::norm;
  }
  return specs;
}

double MultiHeadAttention::flops(const Settings& s, int block) const {
  const double d = static_cast<double>(s.model.d_model), c = static_cast<double>(head_dim_of(s));
  const double heads = static_cast<double>(s.model.heads), kv = static_cast<double>(kv_heads_of(s));
  const double projections = 2 * d * c * (2 * heads + 2 * kv);
  return projections + 4 * heads * c * keys_seen(s, block);
}

std::unique_ptr<PartLayer> MultiHeadAttention::make(const PartPlace& place, const Parameters& parameters,
                                                    const Plan& plan) const {
  return std::make_unique<Attention>(parameters, place, plan);
}

Attention::Attention(const Parameters& parameters, const PartPlace& place, const Plan& plan)
    : out_(parameters.ref(place.stem + ".o_proj.weight")),
      window_(block_has_window(plan.settings(), place.block)),
      block_(place.block) {
  const std::string& stem = place.stem;
  const ModelSettings& model = plan.settings().model;
  const auto keys = read_keys<MultiHeadKeys>(model.own);
  auto projection = [&](const std::vector<const char*>& names) {
    std::vector<ParamRef> weights, biases;
    for (const char* name : names) {
      weights.push_back(parameters.ref(stem + name + ".weight"));
      if (keys.biases) {
        biases.push_back(parameters.ref(stem + name + ".bias"));
      }
    }
    Projection made{ParamMatrix(weights), {}};
    if (keys.biases) {
      made.bias.emplace(biases);
    }
    return made;
  };
  const ParamRef q = parameters.ref(stem + ".q_proj.weight"), k = parameters.ref(stem + ".k_proj.weight");
  if (ParamMatrix::neighbours(q, k)) {
    qkv_ = projection({".q_proj", ".k_proj", ".v_proj"});
  } else {
    q_ = projection({".q_proj"});
    kv_ = projection({".k_proj", ".v_proj"});
  }
  if (keys.qk_norm) {
    q_norm_ = parameters.ref(stem + ".q_norm.weight");
    k_norm_ = parameters.ref(stem + ".k_norm.weight");
  }
  if (keys.output_bias) {
    out_bias_ = parameters.ref(stem + ".o_proj.bias");
  }
  if (keys.attention_sinks) {
    sinks_ = parameters.ref(stem + ".sinks");
  }
  head_dim_ = head_dim_of(plan.settings());
  heads_ = out_.param().size[1] / head_dim_;
  kv_heads_ = k.param().size[0] / head_dim_;
  rotary_ = rotary_shape(plan.settings(), head_dim_, head_dim_ - rotary_channels_of(plan.settings()), place.block);
  rotary_.plain_last = true;  // as published models have it
  norm_all_ = keys.qk_norm_over == QkNormOver::all;
  norm_rotated_ = keys.qk_norm_rotated;
  query_scale_ = static_cast<float>(query_scale(model, head_dim_));
  softcap_ = static_cast<float>(keys.attention_softcap);
  eps_ = static_cast<float>(model.norm_eps);
  // Heads may be divided further in the core, where positions are then held together.
  auto in_core = [&](const ParamRef& of) {
    Param p{.spec = of.param().spec};
    p.spec.region = Region::attention_core;
    plan.place(p);
    return p.size[0] / head_dim_;
  };
  core_heads_ = in_core(q);
  core_kv_heads_ = in_core(k);
  core_first_head_ = first_core_head(plan, heads_);
  repeats_ = core_kv_heads_ * (heads_ / core_heads_) / kv_heads_;
}

AttentionShape Attention::shape(const StepContext& ctx) const {
  AttentionShape shape{
      ctx.batch.sequences, ctx.batch.core_positions, core_heads_, core_kv_heads_, head_dim_, 0, block_};
  shape.softcap = softcap_;
  shape.space = shape.kv_space = ctx.space;
  return shape;
}

HeadSinks Attention::sinks(const StepContext& ctx, bool backward) const {
  if (!sinks_.has_value()) {
    return {};
  }
  const auto in_core = [&](const Tensor& t) { return t.slice(core_first_head_, {core_heads_}); };
  const bool wanted = backward && sinks_->wants_grad();
  return {in_core(norm_weight(ctx, sinks_->weight())), wanted ? in_core(sinks_->grad()) : Tensor()};
}

RotaryShape Attention::rotary(std::int64_t heads, std::int64_t kv_heads, bool rotate) const {
  RotaryShape shape = rotary_;
  shape.heads = heads;
  shape.kv_heads = kv_heads;
  shape.theta = rotate ? shape.theta : 0;
  return shape;
}

Tensor Attention::projected(const StepContext& ctx, const Tensor& x, const Projection& by) const {
  Tensor y = linear(ctx, x, by.weight.weight());
  if (by.bias.has_value()) {
    add_bias(ctx, y, by.bias->weight().view({1, y.dim(1)}));
  }
  return y;
}

Tensor Attention::projected_backward(const StepContext& ctx, const Tensor& dy, const Entered& x,
                                     const Projection& by) const {
  if (by.bias.has_value()) {
    add_bias_backward(ctx, by.bias->grad().view({1, dy.dim(1)}), dy);
  }
  return linear_backward(ctx, dy, x, by.weight.weight(), by.weight.wanted_grad());
}

bool Attention::learns_projections() const {
  const auto learns = [](const std::optional<Projection>& by) {
    return by.has_value() && by->weight.wanted_grad().defined();
  };
  return learns(qkv_) || learns(q_) || learns(kv_);
}

// Rotated, where no norm comes before that.
Attention::Heads Attention::project(const StepContext& ctx, const Tensor& x) const {
  const std::int64_t tokens = x.dim(0);
  auto heads = [&](std::int64_t n) { return ctx.device().empty(x.dtype(), {tokens, n * head_dim_}); };
  const Heads to{heads(heads_), heads(kv_heads_), heads(kv_heads_)};
  const Tensor& position = ctx.batch.position;
  const bool rotate = rotates_first();
  if (qkv_.has_value()) {
    ctx.stream.split_rotary(to.q, to.k, to.v, projected(ctx, x, *qkv_), position, rotary(heads_, kv_heads_, rotate));
  } else {
    ctx.stream.split_rotary(to.q, {}, {}, projected(ctx, x, *q_), position, rotary(heads_, 0, rotate));
    ctx.stream.split_rotary({}, to.k, to.v, projected(ctx, x, *kv_), position, rotary(0, kv_heads_, rotate));
  }
  return to;
}

Tensor Attention::project_backward(const StepContext& ctx, const Heads& d, const Entered& x) const {
  auto empty = [&](const RotaryShape& of) {
    return ctx.device().empty(d.q.dtype(), {d.q.dim(0), (of.heads + 2 * of.kv_heads) * of.head_dim});
  };
  const Tensor& position = ctx.batch.position;
  const bool rotated = rotates_first();
  if (qkv_.has_value()) {
    const RotaryShape all = rotary(heads_, kv_heads_, rotated);
    const Tensor dqkv = empty(all);
    ctx.stream.merge_rotary_backward(dqkv, d.q, d.k, d.v, position, all);
    return projected_backward(ctx, dqkv, x, *qkv_);
  }
  const RotaryShape queries = rotary(heads_, 0, rotated), keys = rotary(0, kv_heads_, rotated);
  const Tensor dq = empty(queries), dkv = empty(keys);
  ctx.stream.merge_rotary_backward(dq, d.q, {}, {}, position, queries);
  ctx.stream.merge_rotary_backward(dkv, {}, d.k, d.v, position, keys);
  const Tensor dx = projected_backward(ctx, dq, x, *q_);
  ctx.stream.add(dx, projected_backward(ctx, dkv, x, *kv_));
  return dx;
}

Tensor Attention::normed(const StepContext& ctx, const Tensor& heads, const ParamRef& weight, Saved& saved) const {
  const std::int64_t width = norm_all_ ? heads.dim(1) : head_dim_, rows = heads.elements() / width;
  const Tensor x = heads.view({rows, width}), y = ctx.device().empty(x.dtype(), x.shape());
  const Tensor stats = ctx.device().empty(DType::f32, {rows, 2});
  ctx.stream.norm(y, stats, x, norm_factor(ctx, weight.weight()), {}, NormKind::rmsnorm, eps_);
  saved.push(x);
  saved.push(stats);
  const Tensor flat = y.view(heads.shape());
  if (rotary_.theta == 0 || norm_rotated_) {
    return flat;
  }
  Tensor rotated = ctx.device().empty(x.dtype(), heads.shape());
  ctx.stream.split_rotary(rotated, {}, {}, flat, ctx.batch.position, rotary(heads.dim(1) / head_dim_, 0, true));
  return rotated;
}

Tensor Attention::normed_backward(const StepContext& ctx, const Tensor& d, const ParamRef& weight, Saved& saved) const {
  const Tensor stats = saved.pop(), x = saved.pop();
  Tensor dy = d;
  if (rotary_.theta != 0 && !norm_rotated_) {
    dy = ctx.device().empty(d.dtype(), d.shape());
    ctx.stream.merge_rotary_backward(dy, d, {}, {}, ctx.batch.position, rotary(d.dim(1) / head_dim_, 0, true));
  }
  const Tensor dx = ctx.device().empty(x.dtype(), x.shape());
  ctx.stream.fill(dx, 0);
  ctx.stream.norm_backward(dx, weight.grad(), {}, dy.view(x.shape()), x, stats, norm_factor(ctx, weight.weight()),
                           NormKind::rmsnorm);
  return dx.view(d.shape());
}

Tensor Attention::forward(const StepContext& ctx, const Tensor& n, Saved& saved) const {
  const Tensor x = ctx.cross(attention_enter, n);  // [T, d]
  auto [q, k, v] = project(ctx, x);
  Entered::save(ctx, n, x, saved);
  if (q_norm_.has_value()) {
    q = normed(ctx, q, *q_norm_, saved);
    k = normed(ctx, k, *k_norm_, saved);
  }
  if (query_scale_ != 1) {
    ctx.stream.scale(q, query_scale_);
  }
  q = ctx.cross(core_enter, q);
  k = ctx.cross(core_enter, repeat_heads(k, kv_heads_, repeats_, ctx.stream));
  v = ctx.cross(core_enter, repeat_heads(v, kv_heads_, repeats_, ctx.stream));
  Tensor o = ctx.plan.attention_core().forward(q, k, v, first_seen(ctx.batch, ctx.settings(), window_),
                                               sinks(ctx, false), shape(ctx), saved, ctx.stream);
  o = ctx.cross(core_leave, o);  // [T, h c]
  saved.push(o);
  const Tensor y = ctx.cross(attention_leave, linear(ctx, o, out_.weight()));  // [T, d]
  if (out_bias_.has_value()) {
    add_bias(ctx, y, out_bias_->weight().view({1, y.dim(1)}));
  }
  return y;
}

Tensor Attention::backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const {
  const Tensor o = saved.pop();
  if (out_bias_.has_value()) {
    add_bias_backward(ctx, out_bias_->grad().view({1, dy.dim(1)}), dy);
  }
  const Tensor dy_here = ctx.cross_back(attention_leave, dy);
  Tensor d_o = linear_backward(ctx, dy_here, o, out_.weight(), out_.wanted_grad());
  d_o = ctx.cross_back(core_leave, d_o);
  AttentionCore::Gradients g = ctx.plan.attention_core().backward(d_o, first_seen(ctx.batch, ctx.settings(), window_),
                                                                  sinks(ctx, true), shape(ctx), saved, ctx.stream);
  g.dv = repeat_heads_backward(ctx.cross_back(core_enter, g.dv), kv_heads_, repeats_, ctx.stream);
  g.dk = repeat_heads_backward(ctx.cross_back(core_enter, g.dk), kv_heads_, repeats_, ctx.stream);
  g.dq = ctx.cross_back(core_enter, g.dq);
  if (query_scale_ != 1) {
    ctx.stream.scale(g.dq, query_scale_);
  }
  if (q_norm_.has_value()) {
    g.dk = normed_backward(ctx, g.dk, *k_norm_, saved);
    g.dq = normed_backward(ctx, g.dq, *q_norm_, saved);
  }
  const Entered x(ctx, attention_enter, learns_projections(), saved);
  return ctx.cross_back(attention_enter, project_backward(ctx, {g.dq, g.dk, g.dv}, x));
}

}  // namespace orthant
