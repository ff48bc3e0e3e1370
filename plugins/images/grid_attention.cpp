#include "grid_attention.h"

#include <cmath>
#include <utility>
#include <vector>

#include <orthant/settings.h>
#include <orthant/sizes.h>

#include "dense_rows.h"

namespace orthant::images {
namespace {

constexpr Site attention_enter{Region::attention, Side::enter}, attention_leave{Region::attention, Side::leave};

class GridAttention final : public PartLayer {
 public:
  GridAttention(std::int64_t grid, const std::string& stem, const Parameters& parameters, const Plan& plan)
      : qkv_({parameters.ref(stem + ".q.weight"), parameters.ref(stem + ".k.weight"),
              parameters.ref(stem + ".v.weight")}),
        out_(parameters.ref(stem + ".o.weight")),
        offsets_(parameters.ref(stem + ".offsets.weight")) {
    const std::int64_t channels = head_dim_of(plan.settings());
    shape_ = {.grid = grid,
              .heads = out_.param().size[1] / channels,
              .channels = channels,
              .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(channels)))};
  }

  Tensor forward(const StepContext& ctx, const Tensor& n, Saved& saved) const override {
    Stream& s = ctx.stream;
    const Tensor x = ctx.cross(attention_enter, n);
    const auto heads = [&] { return ctx.device().empty(x.dtype(), {x.dim(0), shape_.heads * shape_.channels}); };
    Tensor q = heads(), k = heads(), v = heads();
    s.split_rotary(q, k, v, linear(ctx, x, qkv_.weight()), ctx.batch.position, split());
    q = as_type(q, DType::f32, s);
    k = as_type(k, DType::f32, s);
    v = as_type(v, DType::f32, s);
    const Tensor o = ctx.device().empty(DType::f32, q.shape());
    const Tensor lse = ctx.device().empty(DType::f32, {q.dim(0), shape_.heads});
    grid_attention(o, lse, q, k, v, as_type(offsets_.weight(), DType::f32, s), of(ctx), s);
    const Tensor out = as_type(o, x.dtype(), s);
    for (const Tensor& t : {x, q, k, v, lse, out}) {
      saved.push(t);
    }
    return ctx.cross(attention_leave, linear(ctx, out, out_.weight()));
  }

  Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const override {
    Stream& s = ctx.stream;
    const Tensor out = saved.pop(), lse = saved.pop(), v = saved.pop(), k = saved.pop(), q = saved.pop(),
                 x = saved.pop();
    const Tensor dy_here = ctx.cross_back(attention_leave, dy);
    const Tensor d_o = linear_backward(ctx, dy_here, out, out_.weight(), out_.wanted_grad());
    const auto like_q = [&] { return ctx.device().empty(DType::f32, q.shape()); };
    const Tensor dq = like_q(), dk = like_q(), dv = like_q();
    grid_attention_backward(dq, dk, dv, offsets_.wanted_grad(), as_type(d_o, DType::f32, s), q, k, v, lse,
                            as_type(offsets_.weight(), DType::f32, s), of(ctx), s);
    const Tensor dqkv = ctx.device().empty(x.dtype(), {x.dim(0), 3 * shape_.heads * shape_.channels});
    s.merge_rotary_backward(dqkv, as_type(dq, x.dtype(), s), as_type(dk, x.dtype(), s), as_type(dv, x.dtype(), s),
                            ctx.batch.position, split());
    return ctx.cross_back(attention_enter, linear_backward(ctx, dqkv, x, qkv_.weight(), qkv_.wanted_grad()));
  }

 private:
  RotaryShape split() const {
    return {.heads = shape_.heads, .kv_heads = shape_.heads, .head_dim = shape_.channels, .theta = 0};
  }
  GridShape of(const StepContext& ctx) const {
    GridShape shape = shape_;
    shape.images = ctx.batch.sequences;
    return shape;
  }

  ParamMatrix qkv_;         // [3 h c, d]
  ParamRef out_, offsets_;  // [d, h c], [offsets, h]
  GridShape shape_;
};

}  // namespace

void add_grid_attention(Link& link, const Settings& s, std::int64_t grid, const std::string& stem) {
  const std::int64_t h = s.model.heads, inner = h * head_dim_of(s), d = s.model.d_model;
  std::vector<ParamSpec>& specs = link.parameters.front().params;
  const auto spec = [&](const char* name, Shape shape, float std) {
    return ParamSpec{.name = stem + name, .global = shape, .region = Region::attention, .std = std};
  };
  const float std = static_cast<float>(s.model.init_std);
  for (const char* name : {".q.weight", ".k.weight", ".v.weight"}) {
    specs.push_back(spec(name, {inner, d}, std));
    specs.back().split[0] = Dim::head;
    specs.back().units[0] = h;
  }
  specs.push_back(spec(".o.weight", {d, inner}, residual_std(s)));
  specs.back().split[1] = Dim::head;
  specs.back().units[1] = h;
  const GridShape shape{.grid = grid};
  specs.push_back(spec(".offsets.weight", {shape.offsets(), h}, std));
  specs.back().split[1] = Dim::head;
  specs.back().decay = false;
  const double cells = static_cast<double>(grid * grid);
  link.flops += 8 * static_cast<double>(d * inner) + 4 * static_cast<double>(inner) * cells;
}

std::unique_ptr<PartLayer> make_grid_attention(std::int64_t grid, const std::string& stem, const Parameters& parameters,
                                               const Plan& plan) {
  return std::make_unique<GridAttention>(grid, stem, parameters, plan);
}

}  // namespace orthant::images
