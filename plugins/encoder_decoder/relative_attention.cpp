#include "relative_attention.h"

#include <algorithm>

#include "heads.h"
#include "relative_scores.h"
#include "settings.h"

namespace orthant::encoder_decoder {
namespace {

Tensor as_f32(const Tensor& t, Stream& s) {
  if (t.dtype() == DType::f32) {
    return t;
  }
  const Tensor wide = s.device().empty(DType::f32, t.shape());
  s.cast(wide, t);
  return wide;
}

Tensor as_type(const Tensor& t, DType type, Stream& s) {
  if (t.dtype() == type) {
    return t;
  }
  const Tensor other = s.device().empty(type, t.shape());
  s.cast(other, t);
  return other;
}

class OfTable final : public RelativeAttention {
 public:
  OfTable(const std::string& stem, const std::string& table, bool both_ways, const Parameters& parameters,
          const Plan& plan)
      : qkv_({parameters.ref(stem + ".q.weight"), parameters.ref(stem + ".k.weight"),
              parameters.ref(stem + ".v.weight")}),
        out_(parameters.ref(stem + ".o.weight")),
        table_(parameters.ref(table)) {
    const Settings& s = plan.settings();
    const StackKeys keys = stack_keys(s);
    channels_ = head_dim_of(s);
    heads_ = out_.param().size[1] / channels_;
    const Range core = core_heads(plan);
    shape_ = {.heads = core.count,
              .channels = channels_,
              .buckets = keys.relative_buckets,
              .distance = keys.relative_distance,
              .first_head = core.begin,
              .table_heads = table_.param().size[1],
              .scale = score_scale(s),
              .both_ways = both_ways};
  }

  Tensor forward(const StepContext& ctx, const Tensor& n, Saved& saved) const override {
    Stream& s = ctx.stream;
    const Tensor x = ctx.cross(attention_enter, n);  // [T, d]
    const auto [q, k, v] = project(ctx, x);
    const Tensor o = ctx.device().empty(DType::f32, q.shape());
    const Tensor lse = ctx.device().empty(DType::f32, {q.dim(0), shape_.heads});
    relative_attention(o, lse, q, k, v, as_f32(table_.weight(), s), ctx.batch.core_first, shape(ctx), s);
    const Tensor out = ctx.cross(core_leave, as_type(o, x.dtype(), s));
    for (const Tensor& t : {x, q, k, v, lse, out}) {
      saved.push(t);
    }
    return ctx.cross(attention_leave, linear(ctx, out, out_.weight()));
  }

  Tensor step(const StepContext& ctx, const Tensor& n, const std::vector<KeptRows>& rows) const override {
    Stream& s = ctx.stream;
    const Tensor x = ctx.cross(attention_enter, n);
    const auto [q, k, v] = project(ctx, x);
    const Tensor o = ctx.device().empty(DType::f32, q.shape());
    relative_attention_step(o, q, k, v, as_f32(table_.weight(), s), rows, shape(ctx), s);
    const Tensor out = ctx.cross(core_leave, as_type(o, x.dtype(), s));
    return ctx.cross(attention_leave, linear(ctx, out, out_.weight()));
  }

  Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const override {
    Stream& s = ctx.stream;
    const Tensor out = saved.pop(), lse = saved.pop(), v = saved.pop(), k = saved.pop(), q = saved.pop(),
                 x = saved.pop();
    const Tensor dy_here = ctx.cross_back(attention_leave, dy);
    Tensor d_o = linear_backward(ctx, dy_here, out, out_.weight(), out_.wanted_grad());
    d_o = as_f32(ctx.cross_back(core_leave, d_o), s);
    const auto like = [&](const Tensor& t) { return ctx.device().empty(DType::f32, t.shape()); };
    const Tensor dq = like(q), dk = like(k), dv = like(v);
    relative_attention_backward(dq, dk, dv, table_.wanted_grad(), d_o, q, k, v, lse, as_f32(table_.weight(), s),
                                ctx.batch.core_first, shape(ctx), s);
    const auto back = [&](const Tensor& t) { return ctx.cross_back(core_enter, as_type(t, x.dtype(), s)); };
    const Tensor dv_here = back(dv), dk_here = back(dk), dq_here = back(dq);
    const Tensor dqkv = ctx.device().empty(x.dtype(), {x.dim(0), 3 * heads_ * channels_});
    s.merge_rotary_backward(dqkv, dq_here, dk_here, dv_here, ctx.batch.position, split());
    const Tensor dx = linear_backward(ctx, dqkv, x, qkv_.weight(), qkv_.wanted_grad());
    return ctx.cross_back(attention_enter, dx);
  }

 private:
  struct Heads {
    Tensor q, k, v;  // f32 [T, h c], in the core
  };
  Heads project(const StepContext& ctx, const Tensor& x) const {
    Stream& s = ctx.stream;
    const auto heads = [&] { return ctx.device().empty(x.dtype(), {x.dim(0), heads_ * channels_}); };
    const Tensor q = heads(), k = heads(), v = heads();
    s.split_rotary(q, k, v, linear(ctx, x, qkv_.weight()), ctx.batch.position, split());
    const Tensor q_core = as_f32(ctx.cross(core_enter, q), s), k_core = as_f32(ctx.cross(core_enter, k), s);
    return {q_core, k_core, as_f32(ctx.cross(core_enter, v), s)};
  }
  // Among the heads that this rank has outside of the core.
  Range core_heads(const Plan& plan) const {
    const std::vector<AxisId> outside = plan.axes_of(Dim::head, Region::attention);
    Range range{0, heads_};
    for (const AxisId axis : plan.axes_of(Dim::head, Region::attention_core)) {
      if (std::find(outside.begin(), outside.end(), axis) == outside.end()) {
        range.count /= plan.mesh().axes()[axis].size;
        range.begin += range.count * plan.mesh().coordinate(axis);
      }
    }
    return range;
  }
  RotaryShape split() const { return {.heads = heads_, .kv_heads = heads_, .head_dim = channels_, .theta = 0}; }
  RelativeShape shape(const StepContext& ctx) const {
    RelativeShape shape = shape_;
    shape.sequences = ctx.batch.sequences;
    shape.positions = ctx.batch.core_positions;
    return shape;
  }

  ParamMatrix qkv_;  // [3 h c, d]
  ParamRef out_;     // [d, h c]
  ParamRef table_;   // [buckets, h]
  std::int64_t heads_ = 0, channels_ = 0;
  RelativeShape shape_;
};

}  // namespace

ParamSpec relative_table(const Settings& s, const std::string& name, const std::vector<int>& links) {
  ParamSpec table{.name = name,
                  .global = {stack_keys(s).relative_buckets, s.model.heads},
                  .region = Region::attention,
                  .layers = links,
                  .std = static_cast<float>(s.model.init_std),
                  .decay = false};
  table.split[1] = Dim::head;
  return table;
}

std::unique_ptr<RelativeAttention> make_relative_attention(const std::string& stem, const std::string& table,
                                                           bool both_ways, const Parameters& parameters,
                                                           const Plan& plan) {
  return std::make_unique<OfTable>(stem, table, both_ways, parameters, plan);
}

}  // namespace orthant::encoder_decoder
