#include "core/layers/latent_attention.h"

#include "core/arch/decoder.h"
#include "core/arch/param_specs.h"
#include "core/arch/rotary.h"
#include "core/layers/attention.h"
#include "core/layers/entered.h"
#include "core/layers/head_parts.h"
#include "core/layers/norm.h"
#include "core/layers/repeat_heads.h"

namespace orthant {
namespace {

constexpr Site latent_enter{Region::attention, Side::enter}, latent_leave{Region::attention, Side::leave};
constexpr Site latent_core_enter{Region::attention_core, Side::enter};
constexpr Site latent_core_leave{Region::attention_core, Side::leave};

}  // namespace

std::vector<ParamSpec> MultiHeadLatentAttention::parameters(const PartPlace& place) const {
  const Settings& s = place.settings;
  const auto m = read_keys<LatentKeys>(s.model.own);
  const std::int64_t d = s.model.d_model, h = s.model.heads, c = head_dim_of(s);
  std::vector<ParamSpec> specs;
  auto by_head = [&](ParamSpec p, int dimension, std::int64_t units) {
    p.split[dimension] = Dim::head;
    p.units[dimension] = units;
    specs.push_back(p);
  };
  auto matrix = [&](const char* name, std::int64_t rows, std::int64_t columns) {
    return matrix_spec(place.stem + name, Region::attention, rows, columns, base_std(s));
  };
  // Serves all heads: a rank has the part of its gradient that its heads make.
  auto shared = [&](ParamSpec p) {
    by_head(std::move(p), 0, 1);
    specs.back().repeats = true;
  };
  auto norm = [&](const char* name, std::int64_t n) {
    shared(
        {.name = place.stem + name, .global = {n}, .region = Region::attention, .init = norm_init(s), .decay = false});
  };
  if (m.q_lora_rank > 0) {
    shared(matrix(".q_a_proj.weight", m.q_lora_rank, d));
    norm(".q_a_layernorm.weight", m.q_lora_rank);
    by_head(matrix(".q_b_proj.weight", h * c, m.q_lora_rank), 0, h);
  } else {
    by_head(matrix(".q_proj.weight", h * c, d), 0, h);
  }
  shared(matrix(".kv_a_proj_with_mqa.weight", m.kv_lora_rank + m.qk_rope_head_dim, d));
  norm(".kv_a_layernorm.weight", m.kv_lora_rank);
  by_head(matrix(".kv_b_proj.weight", h * (m.qk_nope_head_dim + m.v_head_dim), m.kv_lora_rank), 0, h);
  by_head(matrix_spec(place.stem + ".o_proj.weight", Region::attention, d, h * m.v_head_dim, residual_std(s)), 1, h);
  return specs;
}

double MultiHeadLatentAttention::flops(const Settings& s, int block) const {
  const auto m = read_keys<LatentKeys>(s.model.own);
  const std::int64_t d = s.model.d_model, h = s.model.heads, c = head_dim_of(s);
  const std::int64_t queries = m.q_lora_rank > 0 ? m.q_lora_rank * (d + h * c) : d * h * c;
  const std::int64_t keys =
      d * (m.kv_lora_rank + m.qk_rope_head_dim) + m.kv_lora_rank * h * (m.qk_nope_head_dim + m.v_head_dim);
  const double core = static_cast<double>(h * (c + m.v_head_dim)) * keys_seen(s, block);
  return 2 * (static_cast<double>(queries + keys + h * m.v_head_dim * d) + core);
}

std::unique_ptr<PartLayer> MultiHeadLatentAttention::make(const PartPlace& place, const Parameters& parameters,
                                                          const Plan& plan) const {
  return std::make_unique<LatentAttention>(parameters, place, plan);
}

LatentAttention::LatentAttention(const Parameters& parameters, const PartPlace& place, const Plan& plan)
    : kv_down_(parameters.ref(place.stem + ".kv_a_proj_with_mqa.weight")),
      kv_norm_(parameters.ref(place.stem + ".kv_a_layernorm.weight")),
      kv_up_(parameters.ref(place.stem + ".kv_b_proj.weight")),
      out_(parameters.ref(place.stem + ".o_proj.weight")),
      window_(block_has_window(plan.settings(), place.block)),
      block_(place.block) {
  const std::string& stem = place.stem;
  const ModelSettings& model = plan.settings().model;
  const auto keys = read_keys<LatentKeys>(model.own);
  if (keys.q_lora_rank > 0) {
    q_down_ = parameters.ref(stem + ".q_a_proj.weight");
    q_norm_ = parameters.ref(stem + ".q_a_layernorm.weight");
    q_up_ = parameters.ref(stem + ".q_b_proj.weight");
  } else {
    q_up_ = parameters.ref(stem + ".q_proj.weight");
  }
  nope_ = keys.qk_nope_head_dim;
  rope_ = keys.qk_rope_head_dim;
  head_dim_ = nope_ + rope_;
  v_head_dim_ = keys.v_head_dim;
  kv_rank_ = keys.kv_lora_rank;
  heads_ = q_up_.param().size[0] / head_dim_;
  rotary_ = rotary_shape(plan.settings(), head_dim_, nope_, place.block);
  score_factor_ =
      static_cast<float>(rotary_score_factor(read_keys<RotaryKeys>(model.own)) * query_scale(model, head_dim_));
  eps_ = static_cast<float>(keys.latent_norm_eps > 0 ? keys.latent_norm_eps : model.norm_eps);
  // Heads may be divided further in the core, where positions are then held together.
  Param in_core{.spec = q_up_.param().spec};
  in_core.spec.region = Region::attention_core;
  plan.place(in_core);
  core_heads_ = in_core.size[0] / head_dim_;
}

AttentionShape LatentAttention::shape(const StepContext& ctx) const {
  AttentionShape shape{ctx.batch.sequences, ctx.batch.core_positions, core_heads_, core_heads_, head_dim_, 0, block_};
  shape.space = shape.kv_space = ctx.space;
  return shape;
}

// Of heads whose first `plain` channels stay, before those that are rotated.
RotaryShape LatentAttention::rotary(std::int64_t heads, std::int64_t plain) const {
  RotaryShape shape = rotary_;
  shape.heads = heads;
  shape.head_dim = plain + rope_;
  shape.plain = plain;
  return shape;
}

Tensor LatentAttention::normed(const StepContext& ctx, const Tensor& c, const ParamRef& weight, Saved& saved) const {
  const Tensor y = ctx.device().empty(c.dtype(), c.shape()), stats = ctx.device().empty(DType::f32, {c.dim(0), 2});
  ctx.stream.norm(y, stats, c, norm_factor(ctx, weight.weight()), {}, NormKind::rmsnorm, eps_);
  saved.push(c);
  saved.push(stats);
  saved.push(y);
  return y;
}

Tensor LatentAttention::normed_backward(const StepContext& ctx, const Tensor& d, const ParamRef& weight,
                                        Saved& saved) const {
  const Tensor stats = saved.pop(), c = saved.pop(), dc = ctx.device().empty(d.dtype(), d.shape());
  ctx.stream.fill(dc, 0);
  ctx.stream.norm_backward(dc, weight.grad(), {}, d, c, stats, norm_factor(ctx, weight.weight()), NormKind::rmsnorm);
  return dc;
}

Tensor LatentAttention::queries(const StepContext& ctx, const Tensor& x, Saved& saved) const {
  const Tensor from = q_down_.has_value() ? normed(ctx, linear(ctx, x, q_down_->weight()), *q_norm_, saved) : x;
  const Tensor q = linear(ctx, from, q_up_.weight()), rotated = ctx.device().empty(q.dtype(), q.shape());
  ctx.stream.split_rotary(rotated, {}, {}, q, ctx.batch.position, rotary(heads_, nope_));
  if (score_factor_ != 1) {
    ctx.stream.scale(rotated, score_factor_);
  }
  return rotated;
}

std::pair<Tensor, Tensor> LatentAttention::narrow(const StepContext& ctx, const Tensor& x, Saved& saved) const {
  const Tensor down = kv_down_.weight();
  const Tensor c = normed(ctx, linear(ctx, x, down.rows(0, kv_rank_)), kv_norm_, saved);
  const Tensor k_rope = linear(ctx, x, down.rows(kv_rank_, rope_));
  const Tensor rotated = ctx.device().empty(x.dtype(), k_rope.shape());
  ctx.stream.split_rotary(rotated, {}, {}, k_rope, ctx.batch.position, rotary(1, 0));
  return {c, rotated};
}

LatentCore::Keys LatentAttention::widen(const StepContext& ctx, const Tensor& c, const Tensor& k_rope) const {
  Stream& s = ctx.stream;
  const auto [k_nope, v] = split_heads(linear(ctx, c, kv_up_.weight()), heads_, nope_, v_head_dim_, s);
  const Tensor k = join_heads(k_nope, repeat_heads(k_rope, 1, heads_, s), heads_, nope_, rope_, s);
  return {ctx.cross(latent_core_enter, k),
          ctx.cross(latent_core_enter, join_heads(v, {}, heads_, v_head_dim_, head_dim_ - v_head_dim_, s))};
}

Tensor LatentAttention::attend(const StepContext& ctx, const Tensor& q, const Tensor& x, Saved& saved) const {
  const auto [c, k_rope] = narrow(ctx, x, saved);
  if (ctx.sums.latent == nullptr) {
    const auto [k, v] = widen(ctx, c, k_rope);
    return ctx.plan.attention_core().forward(q, k, v, first_seen(ctx.batch, ctx.settings(), window_), {}, shape(ctx),
                                             saved, ctx.stream);
  }
  require(core_heads_ == heads_,
          "latent attention has {} heads and {} in its core: such a model cannot be fed token by "
          "token",
          heads_, core_heads_);
  return ctx.sums.latent->attend(
      q, join_heads(c, k_rope, 1, kv_rank_, rope_, ctx.stream),
      [&](const Tensor& rows) {
        const auto [of_c, of_k_rope] = split_heads(rows, 1, kv_rank_, rope_, ctx.stream);
        return widen(ctx, of_c, of_k_rope);
      },
      shape(ctx), ctx.stream);
}

LatentAttention::Latent LatentAttention::latent_backward(const StepContext& ctx, Tensor dq, const Tensor& dk,
                                                         const Tensor& dv, Saved& saved) const {
  Stream& s = ctx.stream;
  Latent d;
  const auto [dk_nope, dk_rope] = split_heads(dk, heads_, nope_, rope_, s);
  const Tensor of_all = repeat_heads_backward(dk_rope, 1, heads_, s);  // [T, rope]
  d.k_rope = ctx.device().empty(dk.dtype(), of_all.shape());
  s.merge_rotary_backward(d.k_rope, of_all, {}, {}, ctx.batch.position, rotary(1, 0));
  const Tensor dv_own = split_heads(dv, heads_, v_head_dim_, head_dim_ - v_head_dim_, s).first;
  const Tensor dkv = join_heads(dk_nope, dv_own, heads_, nope_, v_head_dim_, s);
  d.kv = normed_backward(ctx, linear_backward(ctx, dkv, saved.pop(), kv_up_.weight(), kv_up_.wanted_grad()), kv_norm_,
                         saved);
  if (score_factor_ != 1) {
    s.scale(dq, score_factor_);
  }
  d.q = ctx.device().empty(dq.dtype(), dq.shape());
  s.merge_rotary_backward(d.q, dq, {}, {}, ctx.batch.position, rotary(heads_, nope_));
  if (q_down_.has_value()) {
    d.q = normed_backward(ctx, linear_backward(ctx, d.q, saved.pop(), q_up_.weight(), q_up_.wanted_grad()), *q_norm_,
                          saved);
  }
  return d;
}

Tensor LatentAttention::forward(const StepContext& ctx, const Tensor& n, Saved& saved) const {
  const Tensor x = ctx.cross(latent_enter, n);  // [T, d]
  Entered::save(ctx, n, x, saved);
  Tensor q = queries(ctx, x, saved);
  q = ctx.cross(latent_core_enter, q);
  Tensor o = attend(ctx, q, x, saved);
  o = ctx.cross(latent_core_leave, o);  // [T, h c]
  o = split_heads(o, heads_, v_head_dim_, head_dim_ - v_head_dim_, ctx.stream).first;
  saved.push(o);
  return ctx.cross(latent_leave, linear(ctx, o, out_.weight()));
}

Tensor LatentAttention::backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const {
  const Tensor o = saved.pop();
  const Tensor dy_here = ctx.cross_back(latent_leave, dy);
  Tensor d_o = linear_backward(ctx, dy_here, o, out_.weight(), out_.wanted_grad());  // [T, h v]
  d_o = join_heads(d_o, {}, heads_, v_head_dim_, head_dim_ - v_head_dim_, ctx.stream);
  d_o = ctx.cross_back(latent_core_leave, d_o);
  AttentionCore::Gradients g = ctx.plan.attention_core().backward(d_o, first_seen(ctx.batch, ctx.settings(), window_),
                                                                  {}, shape(ctx), saved, ctx.stream);
  g.dv = ctx.cross_back(latent_core_enter, g.dv);
  g.dk = ctx.cross_back(latent_core_enter, g.dk);
  g.dq = ctx.cross_back(latent_core_enter, g.dq);
  const Latent d = latent_backward(ctx, g.dq, g.dk, g.dv, saved);
  const Tensor down = kv_down_.weight(), d_down = kv_down_.wanted_grad();
  const auto d_down_of = [&](std::int64_t first, std::int64_t rows) {
    return d_down.defined() ? d_down.rows(first, rows) : Tensor();
  };
  const ParamRef& q = q_down_.has_value() ? *q_down_ : q_up_;
  const Entered x(ctx, latent_enter, q.wants_grad() || d_down.defined(), saved);
  const Tensor dx = linear_backward(ctx, d.q, x, q.weight(), q.wanted_grad());
  ctx.stream.add(dx, linear_backward(ctx, d.kv, x, down.rows(0, kv_rank_), d_down_of(0, kv_rank_)));
  ctx.stream.add(dx, linear_backward(ctx, d.k_rope, x, down.rows(kv_rank_, rope_), d_down_of(kv_rank_, rope_)));
  return ctx.cross_back(latent_enter, dx);
}

}  // namespace orthant
