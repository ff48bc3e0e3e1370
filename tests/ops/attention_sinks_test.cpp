// Attention sinks: they join the softmax of whole and of merged attention, whose backward passes are then those of the
// definition.
#include "tests/ops/oracle.h"

namespace orthant::test::attention_sinks_test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Causal attention in which every query of head h also sees a key of score sinks[h] whose value is zero.
Values oracle_with_sinks(const Values& q, const Values& k, const Values& v, const Values& first, const Values& sinks,
                         const AttentionShape& s, Values* lse_after) {
  Values lse, o = oracle::attention(q, k, v, first, s, &lse);
  for (std::int64_t t = 0; t < s.batch * s.positions; ++t) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      double& total = oracle::at(lse, (t / s.positions * s.heads + h) * s.positions + t % s.positions);
      const double all = std::exp(total) + std::exp(oracle::at(sinks, h));
      for (std::int64_t e = 0; e < s.head_dim; ++e) {
        oracle::at(o, (t * s.heads + h) * s.head_dim + e) *= std::exp(total) / all;
      }
      total = std::log(all);
    }
  }
  if (lse_after != nullptr) {
    *lse_after = lse;
  }
  return o;
}

struct SinkCase {
  AttentionShape shape;
  bool packed;  // documents of 5 positions
  DType dtype;
};

TEST(AttentionSinks, ForwardAndEveryGradient) {
  on_every_device([](OpContext& c) {
    for (const SinkCase& a :
         {SinkCase{{2, 9, 4, 2, 8}, false, DType::f32}, SinkCase{{1, 13, 2, 1, 5}, true, DType::f32},
          SinkCase{{2, 70, 2, 2, 3}, true, DType::f32}, SinkCase{{1, 11, 2, 1, 16}, false, DType::bf16}}) {
      const AttentionShape& s = a.shape;
      const std::string name = fmt::format("{} positions {}", s.positions, name_of(a.dtype));
      const std::int64_t rows = s.batch * s.positions;
      const Shape wide{rows, s.heads * s.head_dim}, narrow{rows, s.kv_heads * s.head_dim};
      const Input q = c.normal(a.dtype, wide, 1.5), k = c.normal(a.dtype, narrow, 1.5);
      const Input v = c.normal(a.dtype, narrow, 1), d_o = c.normal(a.dtype, wide, 1);
      const Input sinks = c.normal(DType::f32, {s.heads}, 2);
      Values first;
      for (std::int64_t t = 0; t < rows && a.packed; ++t) {
        first.push_back(static_cast<double>(t % s.positions / 5 * 5));
      }
      const Tensor from = a.packed ? c.input(DType::i32, {rows}, first).tensor : Tensor{};
      const Tensor o = c.poisoned(a.dtype, wide), lse = c.poisoned(DType::f32, {s.batch, s.heads, s.positions});
      c.stream().attention(o, lse, q.tensor, k.tensor, v.tensor, from, s);
      c.stream().attention_sinks(o, lse, sinks.tensor, s);
      Values expected_lse;
      const Values expected = oracle_with_sinks(q.values, k.values, v.values, first, sinks.values, s, &expected_lse);
      c.expect("o " + name, o, expected, a.dtype == DType::f32 ? 1e-5 : 0.01);
      c.expect("lse " + name, lse, expected_lse, 2e-6);

      const Tensor dq = c.poisoned(a.dtype, wide), dk = c.poisoned(a.dtype, narrow), dv = c.poisoned(a.dtype, narrow);
      const Tensor dsinks = c.constant(DType::f32, {s.heads}, 3).tensor;
      c.stream().attention_sinks_backward(dsinks, d_o.tensor, o, lse, sinks.tensor, s);
      c.stream().attention_backward(dq, dk, dv, d_o.tensor, q.tensor, k.tensor, v.tensor, o, lse, from, s);
      c.same_bits("dsinks " + name, dsinks);
      const auto loss = [&](const Values& wq, const Values& wk, const Values& wv, const Values& ws) {
        return inner(d_o.values, oracle_with_sinks(wq, wk, wv, first, ws, s, nullptr));
      };
      const double tolerance = a.dtype == DType::f32 ? 1e-5 : 0.02;
      Values by_sinks =
          numeric_gradient([&](const Values& x) { return loss(q.values, k.values, v.values, x); }, sinks.values);
      for (double& x : by_sinks) {
        x += 3;  // it is added to what is there
      }
      c.expect("dsinks " + name, dsinks, by_sinks, tolerance);
      if (s.positions < 20) {
        c.expect("dq " + name, dq,
                 numeric_gradient([&](const Values& x) { return loss(x, k.values, v.values, sinks.values); }, q.values),
                 tolerance);
        c.expect("dk " + name, dk,
                 numeric_gradient([&](const Values& x) { return loss(q.values, x, v.values, sinks.values); }, k.values),
                 tolerance);
        c.expect("dv " + name, dv,
                 numeric_gradient([&](const Values& x) { return loss(q.values, k.values, x, sinks.values); }, v.values),
                 tolerance);
      }
    }
  });
}

// Scores far apart, a row that saw nothing, and a sink that is none.
TEST(AttentionSinks, Extremes) {
  on_every_device([](OpContext& c) {
    const AttentionShape s{.batch = 1, .positions = 3, .heads = 2, .kv_heads = 1, .head_dim = 1};
    const Tensor o = c.input(DType::f32, {3, 2}, {2, 2, 2, 2, 0, 0}).tensor;
    const Tensor lse = c.input(DType::f32, {1, 2, 3}, {300, -300, -infinity, 300, -300, -infinity}).tensor;
    c.stream().attention_sinks(o, lse, c.input(DType::f32, {2}, {0, -infinity}).tensor, s);
    c.expect("o", o, {2, 2, 0, 2, 0, 0}, 1e-6);
    c.expect("lse", lse, {300, 0, 0, 300, -300, -infinity}, 1e-6);
  });
}

TEST(AttentionSinks, RefusesWhatDoesNotFit) {
  const auto device = make_cpu_device(1);
  OpContext c(*device);
  const AttentionShape s{.batch = 1, .positions = 2, .heads = 2, .kv_heads = 1, .head_dim = 4};
  const Tensor o = c.poisoned(DType::f32, {2, 8}), lse = c.poisoned(DType::f32, {1, 2, 2});
  const Tensor sinks = c.poisoned(DType::f32, {2}), other = c.poisoned(DType::f32, {4});
  EXPECT_THROW(c.stream().attention_sinks(o, lse, other, s), Error);
  EXPECT_THROW(c.stream().attention_sinks(o, sinks, sinks, s), Error);
  EXPECT_THROW(c.stream().attention_sinks_backward(other, o, o, lse, sinks, s), Error);
  EXPECT_THROW(c.stream().attention_sinks_backward(sinks, c.poisoned(DType::bf16, {2, 8}), o, lse, sinks, s), Error);
}

}  // namespace
}  // namespace orthant::test::attention_sinks_test
