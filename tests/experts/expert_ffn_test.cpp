// The routed experts of one rank, from tokens to tokens: values by the definition in fp64, gradients by its finite
// differences, and large tiles against the same operation made of plain ones in fp32.
#include <gtest/gtest.h>

#include "tests/ops/oracle.h"

namespace orthant::test::expert_ffn_test {
namespace {

struct Case {
  std::int64_t tokens, d, f, experts, top_k;
  Activation kind;
  std::int64_t apart;  // rows_per_expert
};

std::string name_of(const Case& x, DType dtype) {
  return fmt::format("T {} d {} f {} E {} K {} kind {} apart {} {}", x.tokens, x.d, x.f, x.experts, x.top_k,
                     static_cast<int>(x.kind), x.apart, orthant::name_of(dtype));
}

// Who goes where: distinct experts for a token, some choices not made, so that no expert is sure of a row.
struct Routed {
  Values expert, weight;  // [T, K]
  Dispatch dispatch;
};

Routed route(OpContext& c, const Case& x) {
  const std::size_t choices = static_cast<std::size_t>(x.tokens * x.top_k);
  Routed r;
  const Values shift = c.integers(DType::i32, {x.tokens}, 0, x.experts).values;
  const Values made = c.integers(DType::i32, {x.tokens, x.top_k}, 0, 5).values;
  r.weight = c.normal(DType::f32, {x.tokens, x.top_k}, 1).values;
  for (std::size_t i = 0; i < choices; ++i) {
    const std::int64_t t = static_cast<std::int64_t>(i) / x.top_k, k = static_cast<std::int64_t>(i) % x.top_k;
    const auto first = static_cast<std::int64_t>(shift[t]);
    r.expert.push_back(made[i] == 0 ? -1 : static_cast<double>((first + k) % x.experts));
  }
  const GateConfig config{.experts = x.experts, .top_k = x.top_k, .group_tokens = x.tokens, .rows_per_expert = x.apart};
  const std::int64_t room = x.apart > 0 ? x.apart * x.experts : x.tokens * x.top_k;
  const Shape shape{x.tokens, x.top_k};
  const Tensor expert = c.input(DType::i32, shape, r.expert).tensor;
  r.dispatch = {.row = c.poisoned(DType::i32, shape),
                .source = c.poisoned(DType::i32, {room, 1}),
                .offset = c.poisoned(DType::i32, {x.experts + 1}),
                .weight = c.input(DType::f32, shape, r.weight).tensor};
  c.stream().dispatch_plan(r.dispatch.row, r.dispatch.source, c.poisoned(DType::i32, {x.experts}),
                           c.poisoned(DType::i32, {x.experts}), r.dispatch.offset, expert, r.dispatch.weight,
                           c.constant(DType::u8, {x.tokens}, 1).tensor, config);
  return r;
}

std::int64_t hidden(const Case& x) {
  return is_gated(x.kind) ? 2 * x.f : x.f;
}

// y [T, d] by the definition.
Values definition(const Case& x, const Values& in, const Values& w_in, const Values& w_out, const Values& expert,
                  const Values& weight) {
  const std::int64_t n = hidden(x);
  Values y(static_cast<std::size_t>(x.tokens * x.d), 0);
  for (std::int64_t choice = 0; choice < x.tokens * x.top_k; ++choice) {
    const auto e = static_cast<std::int64_t>(expert[choice]);
    if (e < 0) {
      continue;
    }
    const std::int64_t t = choice / x.top_k;
    Values h(static_cast<std::size_t>(n), 0);
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t i = 0; i < x.d; ++i) {
        h[j] += in[t * x.d + i] * w_in[(e * n + j) * x.d + i];
      }
    }
    const Values a = oracle::activation(h, 1, x.f, x.kind);
    for (std::int64_t i = 0; i < x.d; ++i) {
      double sum = 0;
      for (std::int64_t j = 0; j < x.f; ++j) {
        sum += a[j] * w_out[(e * x.d + i) * x.f + j];
      }
      y[t * x.d + i] += weight[choice] * sum;
    }
  }
  return y;
}

struct Outputs {
  Tensor y, h, dx, dweight, dw_in, dw_out;
};

struct Inputs {
  Input x, dy, w_in, w_out, old_in, old_out;
};

Inputs inputs(OpContext& c, const Case& x, DType dtype) {
  const std::int64_t n = hidden(x);
  return {c.normal(dtype, {x.tokens, x.d}, 1),          c.normal(dtype, {x.tokens, x.d}, 1),
          c.normal(dtype, {x.experts, n, x.d}, 0.3),    c.normal(dtype, {x.experts, x.d, x.f}, 0.3),
          c.normal(DType::f32, {x.experts, n, x.d}, 1), c.normal(DType::f32, {x.experts, x.d, x.f}, 1)};
}

Outputs run(OpContext& c, const Case& x, const Inputs& in, const Dispatch& to, bool accumulate) {
  const DType dtype = in.x.tensor.dtype();
  const std::int64_t n = hidden(x), room = to.source.dim(0);
  Outputs o{.y = c.poisoned(dtype, {x.tokens, x.d}),
            .h = c.poisoned(dtype, {room, n}),
            .dx = c.poisoned(dtype, {x.tokens, x.d}),
            .dweight = c.poisoned(DType::f32, {x.tokens, x.top_k}),
            .dw_in = accumulate ? in.old_in.tensor : c.poisoned(DType::f32, {x.experts, n, x.d}),
            .dw_out = accumulate ? in.old_out.tensor : c.poisoned(DType::f32, {x.experts, x.d, x.f})};
  c.stream().expert_ffn(o.y, o.h, in.x.tensor, in.w_in.tensor, in.w_out.tensor, to, x.kind);
  c.stream().expert_ffn_backward(o.dx, o.dweight, o.dw_in, o.dw_out, in.dy.tensor, in.x.tensor, o.h, in.w_in.tensor,
                                 in.w_out.tensor, to, x.kind, accumulate ? 1.0f : 0.0f);
  return o;
}

// Sizes that the kernels on matrix units take, and sizes that they do not.
const Case small[] = {{9, 16, 8, 3, 2, Activation::swiglu, 0},         {9, 16, 8, 3, 2, Activation::swiglu, 9},
                      {7, 8, 16, 4, 1, Activation::gelu, 0},           {5, 5, 3, 2, 2, Activation::swiglu, 0},
                      {9, 16, 8, 3, 2, Activation::clamped_swiglu, 0}, {6, 8, 24, 2, 1, Activation::relu, 0}};

TEST(ExpertFfn, IsTheDefinitionAndItsGradient) {
  for (const Case& x : small) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const bool accumulate : {false, true}) {
        Values y, dx, dweight, dw_in, dw_out;  // by the definition, once
        on_every_device([&](OpContext& c) {
          const Routed r = route(c, x);
          const Inputs in = inputs(c, x, dtype);
          if (y.empty()) {
            const auto loss = [&](const Values& xs, const Values& ins, const Values& outs, const Values& weights) {
              return inner(in.dy.values, definition(x, xs, ins, outs, r.expert, weights));
            };
            const Values &xs = in.x.values, &ins = in.w_in.values, &outs = in.w_out.values;
            y = definition(x, xs, ins, outs, r.expert, r.weight);
            dx = numeric_gradient([&](const Values& v) { return loss(v, ins, outs, r.weight); }, xs);
            dw_in = numeric_gradient([&](const Values& v) { return loss(xs, v, outs, r.weight); }, ins);
            dw_out = numeric_gradient([&](const Values& v) { return loss(xs, ins, v, r.weight); }, outs);
            dweight = numeric_gradient([&](const Values& v) { return loss(xs, ins, outs, v); }, r.weight);
            for (std::size_t i = 0; accumulate && i < dw_in.size(); ++i) {
              dw_in[i] += in.old_in.values[i];
            }
            for (std::size_t i = 0; accumulate && i < dw_out.size(); ++i) {
              dw_out[i] += in.old_out.values[i];
            }
          }
          const Outputs o = run(c, x, in, r.dispatch, accumulate);
          const std::string name = name_of(x, dtype);
          const double tolerance = dtype == DType::f32 ? 1e-5 : 0.03;
          c.expect("y " + name, o.y, y, tolerance);
          c.expect("dx " + name, o.dx, dx, tolerance);
          c.expect("dweight " + name, o.dweight, dweight, tolerance);
          c.expect("dw_in " + name, o.dw_in, dw_in, tolerance);
          c.expect("dw_out " + name, o.dw_out, dw_out, tolerance);
        });
      }
    }
  }
}

// More than one tile in every direction, some experts with many rows and some with none.
TEST(ExpertFfn, OfManyTilesIsThatOfPlainOperations) {
  for (const Case& x :
       {Case{150, 136, 200, 2, 2, Activation::swiglu, 0}, Case{200, 264, 136, 5, 1, Activation::gelu, 0},
        Case{140, 136, 72, 3, 2, Activation::swiglu, 145}, Case{330, 72, 104, 2, 2, Activation::swiglu, 0}}) {
    std::map<std::string, Values> want;
    on_every_device([&](OpContext& c) {
      const Routed r = route(c, x);
      const Inputs in = inputs(c, x, DType::bf16);
      if (want.empty()) {
        const auto cpu = make_cpu_device(1);
        OpContext plain(*cpu);
        const Routed routed = route(plain, x);
        const auto wide = [&](const Input& i) { return plain.input(DType::f32, i.tensor.shape(), i.values); };
        const Outputs o =
            run(plain, x, {wide(in.x), wide(in.dy), wide(in.w_in), wide(in.w_out), wide(in.old_in), wide(in.old_out)},
                routed.dispatch, true);
        want = {{"y", plain.values_of(o.y)},
                {"dx", plain.values_of(o.dx)},
                {"dweight", plain.values_of(o.dweight)},
                {"dw_in", plain.values_of(o.dw_in)},
                {"dw_out", plain.values_of(o.dw_out)}};
      }
      const Outputs o = run(c, x, in, r.dispatch, true);
      // h and a are rounded to 8 bits in between.
      c.expect("y", o.y, want["y"], 0.03);
      c.expect("dx", o.dx, want["dx"], 0.05);
      c.expect("dweight", o.dweight, want["dweight"], 0.03);
      c.expect("dw_in", o.dw_in, want["dw_in"], 0.03);
      c.expect("dw_out", o.dw_out, want["dw_out"], 0.03);
    });
  }
}

}  // namespace
}  // namespace orthant::test::expert_ffn_test
