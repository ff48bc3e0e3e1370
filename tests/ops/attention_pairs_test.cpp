// Attention of bf16 on the CPU, which multiplies pairs of neighbouring keys, queries or channels where the processor
// can: what is rounded for that, and that no query feels its neighbours.
#include <algorithm>
#include <array>

#include "tests/ops/oracle.h"

namespace orthant::test::attention_pairs_test {
namespace {

// A weight or a gradient of a score, as it is multiplied.
double held(double x) {
#if defined(__AVX512BF16__)
  return rounded(DType::bf16, x);
#else
  return x;
#endif
}

// One query and two keys, everything by hand: with fp32 products where pairs are expected, or the other way round,
// results are off by 5e-4 and more.
TEST(AttentionPairs, RoundWeightsAndGradientsOfScores) {
  const auto device = make_cpu_device(1);
  OpContext c(*device);
  const AttentionShape s{.batch = 1, .positions = 1, .heads = 1, .kv_heads = 1, .head_dim = 1, .kv_positions = 2};
  const Tensor q = c.constant(DType::bf16, {1, 1}, 1).tensor, d_o = q;
  const Tensor k = c.input(DType::bf16, {2, 1}, {0, -0.25}).tensor, v = c.input(DType::bf16, {2, 1}, {0, 1}).tensor;
  const Tensor q_position = c.input(DType::i32, {1}, {1}).tensor, k_position = c.input(DType::i32, {2}, {0, 1}).tensor;
  const Tensor o = c.poisoned(DType::f32, {1, 1}), lse = c.poisoned(DType::f32, {1, 1, 1});
  c.stream().attention_block(o, lse, q, k, v, q_position, k_position, {}, s);
  const double weight = std::exp(-0.25), sum = 1 + weight;
  c.expect("o", o, {held(weight) / sum}, 1e-5);
  c.expect("lse", lse, {std::log(sum)}, 1e-6);

  const Tensor o_final = c.poisoned(DType::bf16, {1, 1}), dq = c.constant(DType::f32, {1, 1}, 0).tensor;
  const Tensor dk = c.constant(DType::f32, {2, 1}, 0).tensor, dv = c.constant(DType::f32, {2, 1}, 0).tensor;
  c.stream().cast(o_final, o);
  c.stream().attention_block_backward(dq, dk, dv, d_o, q, k, v, o_final, lse, q_position, k_position, {}, s);
  const double mean = rounded(DType::bf16, held(weight) / sum);
  const double ds0 = held(1 / sum * (0 - mean)), ds1 = held(weight / sum * (1 - mean));
  c.expect("dv", dv, {held(1 / sum), held(weight / sum)}, 1e-5);
  c.expect("dk", dk, {ds0, ds1}, 1e-5);
  c.expect("dq", dq, {ds1 * -0.25}, 1e-5);
}

// Tokens get the same bits whatever comes after them: also those whose partner is the first that they do not see, and
// those that share a tile with others.
TEST(AttentionPairs, LaterTokensChangeNothing) {
  const auto device = make_cpu_device(1);
  OpContext c(*device);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t head_dim : {5, 48}) {
      constexpr std::int64_t whole = 133;
      const Shape shape{whole, head_dim};
      const Tensor q = c.normal(dtype, shape, 1).tensor, k = c.normal(dtype, shape, 1).tensor;
      const Tensor v = c.normal(dtype, shape, 1).tensor, d_o = c.normal(dtype, shape, 1).tensor;
      const auto run = [&](std::int64_t positions) {
        const AttentionShape s{.batch = 1, .positions = positions, .heads = 1, .kv_heads = 1, .head_dim = head_dim};
        const auto part = [&](const Tensor& t) { return t.rows(0, positions); };
        const Tensor o = c.poisoned(dtype, {positions, head_dim}), lse = c.poisoned(DType::f32, {1, 1, positions});
        const Tensor dq = c.poisoned(dtype, o.shape()), dk = c.poisoned(dtype, o.shape());
        const Tensor dv = c.poisoned(dtype, o.shape());
        c.stream().attention(o, lse, part(q), part(k), part(v), {}, s);
        c.stream().attention_backward(dq, dk, dv, part(d_o), part(q), part(k), part(v), o, lse, {}, s);
        return std::array<Values, 3>{c.values_of(o), c.values_of(lse), c.values_of(dq)};
      };
      const std::array<Values, 3> all = run(whole);
      for (const std::int64_t positions : {1, 2, 3, 15, 16, 17, 31, 63, 64, 65, 66, 127, 128, 129, 132}) {
        const std::array<Values, 3> some = run(positions);
        for (std::size_t i = 0; i < some.size(); ++i) {
          const auto same = std::equal(some[i].begin(), some[i].end(), all[i].begin());
          EXPECT_TRUE(same) << std::array{"o", "lse", "dq"}[i] << " of " << positions << " tokens, " << head_dim
                            << " channels, " << name_of(dtype);
        }
      }
    }
  }
}

}  // namespace
}  // namespace orthant::test::attention_pairs_test
