#include "core/layers/attention.h"

#include "core/arch/parameter_table.h"
#include "core/layers/repeat_heads.h"

namespace orthant {
namespace {

constexpr Site enter{Region::attention, Side::enter}, leave{Region::attention, Side::leave};
constexpr Site core_enter{Region::attention_core, Side::enter}, core_leave{Region::attention_core, Side::leave};

}  // namespace

Attention::Attention(const ParamStore& store, const std::string& stem, const Plan& plan)
    : out_(store.ref(stem + ".o_proj.weight")) {
  const ParamRef q = store.ref(stem + ".q_proj.weight"), k = store.ref(stem + ".k_proj.weight");
  const ParamRef v = store.ref(stem + ".v_proj.weight");
  if (ParamMatrix::neighbours(q, k)) {
    qkv_.emplace(std::vector{q, k, v});
  } else {
    q_.emplace(std::vector{q});
    kv_.emplace(std::vector{k, v});
  }
  const std::int64_t c = head_dim_of(plan.settings());
  const bool rotate = plan.settings().model.positions == Positions::rotary;
  rotary_ = {out_.param().size[1] / c, k.param().size[0] / c, c, rotate ? plan.settings().model.rope_theta : 0};
  // Heads may be divided further in the core, where positions are then held together.
  auto in_core = [&](const char* name) {
    Param p{.spec = store.ref(stem + name).param().spec};
    p.spec.region = Region::attention_core;
    plan.place(p);
    return p.size[0] / c;
  };
  core_heads_ = in_core(".q_proj.weight");
  core_kv_heads_ = in_core(".k_proj.weight");
  repeats_ = core_kv_heads_ * (rotary_.heads / core_heads_) / rotary_.kv_heads;
}

AttentionShape Attention::shape(const StepContext& ctx) const {
  return {ctx.batch.sequences, ctx.batch.core_positions, core_heads_, core_kv_heads_, rotary_.head_dim};
}

Attention::Heads Attention::project(const StepContext& ctx, const Tensor& x) const {
  const std::int64_t tokens = x.dim(0), c = rotary_.head_dim;
  auto heads = [&](std::int64_t n) { return ctx.device().empty(x.dtype(), {tokens, n * c}); };
  const Heads to{heads(rotary_.heads), heads(rotary_.kv_heads), heads(rotary_.kv_heads)};
  const Tensor& position = ctx.batch.position;
  if (qkv_.has_value()) {
    ctx.stream.split_rotary(to.q, to.k, to.v, linear(ctx, x, qkv_->weight()), position, rotary_);
  } else {
    ctx.stream.split_rotary(to.q, {}, {}, linear(ctx, x, q_->weight()), position, queries());
    ctx.stream.split_rotary({}, to.k, to.v, linear(ctx, x, kv_->weight()), position, keys());
  }
  return to;
}

Tensor Attention::project_backward(const StepContext& ctx, const Heads& d, const Tensor& x) const {
  auto empty = [&](const RotaryShape& of) {
    return ctx.device().empty(x.dtype(), {x.dim(0), (of.heads + 2 * of.kv_heads) * of.head_dim});
  };
  const Tensor& position = ctx.batch.position;
  if (qkv_.has_value()) {
    const Tensor dqkv = empty(rotary_);
    ctx.stream.merge_rotary_backward(dqkv, d.q, d.k, d.v, position, rotary_);
    return linear_backward(ctx, dqkv, x, qkv_->weight(), qkv_->grad());
  }
  const Tensor dq = empty(queries()), dkv = empty(keys());
  ctx.stream.merge_rotary_backward(dq, d.q, {}, {}, position, queries());
  ctx.stream.merge_rotary_backward(dkv, {}, d.k, d.v, position, keys());
  const Tensor dx = linear_backward(ctx, dq, x, q_->weight(), q_->grad());
  ctx.stream.add(dx, linear_backward(ctx, dkv, x, kv_->weight(), kv_->grad()));
  return dx;
}

Tensor Attention::forward(const StepContext& ctx, const Tensor& n, Saved& saved) const {
  const Tensor x = ctx.plan.cross(enter, n, ctx.stream);  // [T, d]
  auto [q, k, v] = project(ctx, x);
  push(saved, x);
  q = ctx.plan.cross(core_enter, q, ctx.stream);
  k = ctx.plan.cross(core_enter, repeat_heads(k, rotary_.kv_heads, repeats_, ctx.stream), ctx.stream);
  v = ctx.plan.cross(core_enter, repeat_heads(v, rotary_.kv_heads, repeats_, ctx.stream), ctx.stream);
  Tensor o = ctx.plan.attention_core().forward(q, k, v, ctx.batch.core_first, shape(ctx), saved, ctx.stream);
  o = ctx.plan.cross(core_leave, o, ctx.stream);  // [T, h c]
  push(saved, o);
  return ctx.plan.cross(leave, linear(ctx, o, out_.weight()), ctx.stream);
}

Tensor Attention::backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const {
  const Tensor o = pop(saved);
  const Tensor dy_here = ctx.plan.cross_back(leave, dy, ctx.stream);
  Tensor d_o = linear_backward(ctx, dy_here, o, out_.weight(), out_.grad());
  d_o = ctx.plan.cross_back(core_leave, d_o, ctx.stream);
  AttentionCore::Gradients g =
      ctx.plan.attention_core().backward(d_o, ctx.batch.core_first, shape(ctx), saved, ctx.stream);
  g.dv =
      repeat_heads_backward(ctx.plan.cross_back(core_enter, g.dv, ctx.stream), rotary_.kv_heads, repeats_, ctx.stream);
  g.dk =
      repeat_heads_backward(ctx.plan.cross_back(core_enter, g.dk, ctx.stream), rotary_.kv_heads, repeats_, ctx.stream);
  g.dq = ctx.plan.cross_back(core_enter, g.dq, ctx.stream);
  const Tensor x = pop(saved);
  return ctx.plan.cross_back(enter, project_backward(ctx, {g.dq, g.dk, g.dv}, x), ctx.stream);
}

}  // namespace orthant
