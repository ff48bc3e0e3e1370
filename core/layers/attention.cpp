#include "core/layers/attention.h"

#include "core/layers/parameters.h"

namespace orthant {
namespace {

constexpr Site enter{Region::attention, Side::enter}, leave{Region::attention, Side::leave};
constexpr Site core_enter{Region::attention_core, Side::enter}, core_leave{Region::attention_core, Side::leave};

// q, k and v projections as one matrix.
Tensor fused(const ParamGroup& group, const Tensor& flat, std::size_t index) {
  const Param& q = group.params[index];
  const Param& v = group.params[index + 2];
  return flat.slice(q.begin, {(v.begin + v.elements() - q.begin) / q.size[1], q.size[1]});
}

}  // namespace

Attention::Attention(ParamGroup& group, std::size_t index, const Plan& plan) : group_(group), index_(index) {
  const std::int64_t c = head_dim_of(plan.settings());
  const bool rotate = plan.settings().model.positions == Positions::rotary;
  rotary_ = {group.params[index].size[0] / c, group.params[index + 1].size[0] / c, c,
             rotate ? plan.settings().model.rope_theta : 0};
}

AttentionShape Attention::shape(const StepContext& ctx) const {
  return {ctx.batch.sequences, ctx.batch.positions, rotary_.heads, rotary_.kv_heads, rotary_.head_dim};
}

Tensor Attention::forward(const StepContext& ctx, const Tensor& n, Saved& saved) const {
  Device& device = ctx.device();
  const Tensor x = ctx.plan.cross(enter, n, ctx.stream);                    // [T, d]
  const Tensor qkv = linear(ctx, x, fused(group_, group_.weight, index_));  // [T, (h + 2 kv) c]
  const std::int64_t tokens = x.dim(0), c = rotary_.head_dim;
  Tensor q = device.empty(x.dtype(), {tokens, rotary_.heads * c});
  Tensor k = device.empty(x.dtype(), {tokens, rotary_.kv_heads * c});
  Tensor v = device.empty(x.dtype(), {tokens, rotary_.kv_heads * c});
  ctx.stream.split_rotary(q, k, v, qkv, ctx.batch.position, rotary_);
  push(saved, x);
  q = ctx.plan.cross(core_enter, q, ctx.stream);
  k = ctx.plan.cross(core_enter, k, ctx.stream);
  v = ctx.plan.cross(core_enter, v, ctx.stream);
  Tensor o = ctx.plan.attention_core().forward(q, k, v, ctx.batch.first, shape(ctx), saved, ctx.stream);
  o = ctx.plan.cross(core_leave, o, ctx.stream);  // [T, h c]
  push(saved, o);
  return ctx.plan.cross(leave, linear(ctx, o, group_.weight_of(group_.params[index_ + 3])), ctx.stream);
}

Tensor Attention::backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const {
  const Param& out = group_.params[index_ + 3];
  const Tensor o = pop(saved);
  const Tensor dy_here = ctx.plan.cross_back(leave, dy, ctx.stream);
  Tensor d_o = linear_backward(ctx, dy_here, o, group_.weight_of(out), group_.grad_of(out));
  d_o = ctx.plan.cross_back(core_leave, d_o, ctx.stream);
  AttentionCore::Gradients g = ctx.plan.attention_core().backward(d_o, ctx.batch.first, shape(ctx), saved, ctx.stream);
  g.dv = ctx.plan.cross_back(core_enter, g.dv, ctx.stream);
  g.dk = ctx.plan.cross_back(core_enter, g.dk, ctx.stream);
  g.dq = ctx.plan.cross_back(core_enter, g.dq, ctx.stream);
  const Tensor x = pop(saved);
  Tensor dqkv = ctx.device().empty(x.dtype(), {x.dim(0), (rotary_.heads + 2 * rotary_.kv_heads) * rotary_.head_dim});
  ctx.stream.merge_rotary_backward(dqkv, g.dq, g.dk, g.dv, ctx.batch.position, rotary_);
  const Tensor dx =
      linear_backward(ctx, dqkv, x, fused(group_, group_.weight, index_), fused(group_, group_.grad, index_));
  return ctx.plan.cross_back(enter, dx, ctx.stream);
}

}  // namespace orthant
