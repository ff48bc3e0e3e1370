#include "cross_attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

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
          .kv_positions = ctx.batch.spaces.empty() ? 0 : ctx.batch.spaces[source_space - 1].core_positions,
          .block = block_,
          .space = target_space,
          .kv_space = source_space};
}

Tensor CrossAttention::queries(const StepContext& ctx, const Tensor& x) const {
  const Tensor q = linear(ctx, x, q_.weight());
  if (query_scale_ != 1) {
    ctx.stream.scale(q, query_scale_);
  }
  return ctx.cross(core_enter, q);
}

CrossAttention::Kept CrossAttention::keys(const StepContext& source, const Tensor& m) const {
  const Tensor kv = linear(source, m, kv_.weight());
  const auto half = [&] { return source.device().empty(m.dtype(), {m.dim(0), heads_ * channels_}); };
  // Queries of no heads: the keys' rows are split in two.
  Tensor k = half(), v = half();
  source.stream.split_rotary({}, k, v, kv, source.batch.position,
                             {.heads = 0, .kv_heads = heads_, .head_dim = channels_, .theta = 0});
  k = source.cross(core_enter, k);
  v = source.cross(core_enter, v);
  return {k, v};
}

Tensor CrossAttention::forward(const StepContext& ctx, const Tensor& n, const Tensor& memory, Saved& saved) const {
  Stream& s = ctx.stream;
  const StepContext source = ctx.in(source_space);
  const Tensor x = ctx.cross(attention_enter, n), m = source.cross(attention_enter, memory);
  const Tensor q = queries(ctx, x);
  const auto [k, v] = keys(source, m);
  saved.push(x);
  saved.push(m);
  Tensor o = ctx.plan.attention_core().forward(q, k, v, source.batch.seen_here, {}, shape(ctx), saved, s);
  o = ctx.cross(core_leave, o);
  saved.push(o);
  return ctx.cross(attention_leave, linear(ctx, o, out_.weight()));
}

CrossAttention::Kept CrossAttention::keep(const StepContext& source, const Tensor& memory) const {
  return keys(source, source.cross(attention_enter, memory));
}

Tensor CrossAttention::step(const StepContext& ctx, const Tensor& n, const std::vector<Run>& runs) const {
  Stream& s = ctx.stream;
  const Tensor x = ctx.cross(attention_enter, n);
  const Tensor q = queries(ctx, x);
  const Tensor all = ctx.device().empty(q.dtype(), q.shape());
  s.fill(all, 0);
  for (const Run& run : runs) {
    const std::int64_t kept = run.kept->k.dim(0);
    std::vector<std::int32_t> seen(static_cast<std::size_t>(2 * run.rows), 0);
    std::fill(seen.begin() + run.rows, seen.end(), static_cast<std::int32_t>(kept - 1));
    const Tensor ends = ctx.device().empty(DType::i32, {2, run.rows});
    s.upload(ends, seen.data());
    s.synchronize();  // before the numbers go
    AttentionShape of = shape(ctx);
    of.batch = 1;
    of.positions = run.rows;
    of.kv_positions = kept;
    Saved unused;
    const Tensor o =
        ctx.plan.attention_core().forward(q.rows(run.row, run.rows), run.kept->k, run.kept->v, ends, {}, of, unused, s);
    s.copy(all.rows(run.row, run.rows), o);
  }
  return ctx.cross(attention_leave, linear(ctx, ctx.cross(core_leave, all), out_.weight()));
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
