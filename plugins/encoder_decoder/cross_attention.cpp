#include "cross_attention.h"

#include <cmath>

#include "heads.h"
#include "settings.h"

namespace orthant::encoder_decoder {
namespace {

// Heads of this rank in the attention core.
std::int64_t heads_in_core(const ParamRef& of, std::int64_t channels, const Plan& plan) {
  Param in_core{.spec = of.param().spec};
  in_core.spec.region = Region::attention_core;
  plan.place(in_core);
  return in_core.size[0] / channels;
}

}  // namespace

CrossAttention::CrossAttention(const std::string& stem, int block, const Parameters& parameters, const Plan& plan)
    : q_(parameters.ref(stem + ".q.weight")),
      kv_({parameters.ref(stem + ".k.weight"), parameters.ref(stem + ".v.weight")}),
      out_(parameters.ref(stem + ".o.weight")),
      heads_(out_.param().size[1] / head_dim_of(plan.settings())),
      core_heads_(heads_in_core(q_, head_dim_of(plan.settings()), plan)),
      channels_(head_dim_of(plan.settings())),
      block_(block),
      query_scale_(score_scale(plan.settings()) * std::sqrt(static_cast<float>(channels_))) {}

AttentionShape CrossAttention::shape(const StepContext& ctx) const {
  return {.batch = ctx.batch.sequences,
          .positions = ctx.batch.core_positions,
          .heads = core_heads_,
          .kv_heads = core_heads_,
          .head_dim = channels_,
          .kv_positions = ctx.in(source_space).batch.core_positions,
          .block = block_,
          .space = target_space,
          .kv_space = source_space};
}

Tensor CrossAttention::forward(const StepContext& ctx, const Tensor& n, const Tensor& memory, Saved& saved) const {
  Stream& s = ctx.stream;
  const StepContext source = ctx.in(source_space);
  const Tensor x = ctx.cross(attention_enter, n), m = source.cross(attention_enter, memory);
  const Tensor kv = linear(source, m, kv_.weight());
  Tensor q = linear(ctx, x, q_.weight());
  const auto half = [&] { return ctx.device().empty(m.dtype(), {m.dim(0), heads_ * channels_}); };
  // Queries of no heads: the keys' rows are split in two.
  Tensor k = half(), v = half();
  s.split_rotary({}, k, v, kv, source.batch.position,
                 {.heads = 0, .kv_heads = heads_, .head_dim = channels_, .theta = 0});
  if (query_scale_ != 1) {
    s.scale(q, query_scale_);
  }
  q = ctx.cross(core_enter, q);
  k = source.cross(core_enter, k);
  v = source.cross(core_enter, v);
  saved.push(x);
  saved.push(m);
  Tensor o = ctx.plan.attention_core().forward(q, k, v, source.batch.seen_here, {}, shape(ctx), saved, s);
  o = ctx.cross(core_leave, o);
  saved.push(o);
  return ctx.cross(attention_leave, linear(ctx, o, out_.weight()));
}

std::pair<Tensor, Tensor> CrossAttention::backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const {
  Stream& s = ctx.stream;
  const StepContext source = ctx.in(source_space);
  const Tensor o = saved.pop();
  const Tensor dy_here = ctx.cross_back(attention_leave, dy);
  Tensor d_o = linear_backward(ctx, dy_here, o, out_.weight(), out_.wanted_grad());
  d_o = ctx.cross_back(core_leave, d_o);
  AttentionCore::Gradients g =
      ctx.plan.attention_core().backward(d_o, source.batch.seen_here, {}, shape(ctx), saved, s);
  const Tensor m = saved.pop(), x = saved.pop();
  const Tensor dv = source.cross_back(core_enter, g.dv), dk = source.cross_back(core_enter, g.dk);
  const Tensor dq = ctx.cross_back(core_enter, g.dq);
  if (query_scale_ != 1) {
    s.scale(dq, query_scale_);
  }
  const Tensor dkv = ctx.device().empty(m.dtype(), {m.dim(0), 2 * heads_ * channels_});
  s.merge_rotary_backward(dkv, {}, dk, dv, source.batch.position,
                          {.heads = 0, .kv_heads = heads_, .head_dim = channels_, .theta = 0});
  const Tensor dm = linear_backward(source, dkv, m, kv_.weight(), kv_.wanted_grad());
  const Tensor dn = linear_backward(ctx, dq, x, q_.weight(), q_.wanted_grad());
  const Tensor dn_here = ctx.cross_back(attention_enter, dn);
  return {dn_here, source.cross_back(attention_enter, dm)};
}

}  // namespace orthant::encoder_decoder
