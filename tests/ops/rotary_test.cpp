// Rotary positions against complex multiplication, and the backward as the forward's adjoint.
#include "tests/ops/oracle.h"
#include "tests/support/error_of.h"

namespace orthant::test::rotary_test {
namespace {

struct RotaryCase {
  std::int64_t rows, heads, kv_heads, c;
  double theta;
  std::int64_t positions;  // positions are drawn below this
  DType dtype;
  RotaryScaling scaling = {};
  bool interleaved = false;
  std::int64_t plain = 0;
  bool plain_last = false;
  RotaryShape shape() const { return {heads, kv_heads, c, theta, scaling, interleaved, plain, plain_last}; }
};
// By pairs and by frequencies, each cut off at both ends.
const RotaryScaling by_pair{.factor = 4, .at_zero = 1.2, .by_pair = -0.3, .magnitude = 1.1};
const RotaryScaling by_frequency{.factor = 8, .at_zero = -0.25, .by_frequency = 3};
const RotaryCase cases[] = {{0, 2, 1, 4, 1e4, 5, DType::f32},
                            {1, 1, 1, 2, 1e4, 9, DType::f32},
                            {13, 4, 2, 8, 1e4, 100, DType::f32},
                            {9, 3, 3, 34, 500, 300000, DType::f32},
                            {40, 4, 2, 64, 1e4, 64, DType::bf16},
                            {7, 2, 1, 5, 0, 1, DType::f32},
                            {13, 4, 2, 14, 1e4, 100, DType::f32, by_pair},
                            {9, 3, 1, 16, 1e4, 90000, DType::f32, by_frequency},
                            {13, 4, 2, 8, 1e4, 100, DType::f32, {}, true},
                            {9, 3, 1, 12, 500, 50, DType::f32, by_pair, false, 4},
                            {11, 2, 1, 48, 1e4, 300, DType::f32, by_pair, true, 16},
                            {11, 2, 1, 48, 1e4, 300, DType::bf16, by_frequency, true, 16},
                            {40, 3, 0, 24, 1e4, 300, DType::bf16, {}, false, 8},
                            {5, 1, 1, 6, 1e4, 9, DType::f32, {}, true, 6},
                            {9, 3, 1, 12, 500, 50, DType::f32, by_pair, false, 4, true},
                            {11, 2, 1, 48, 1e4, 300, DType::f32, {}, true, 16, true},
                            {40, 3, 1, 24, 1e4, 300, DType::bf16, {}, false, 8, true},
                            {5, 1, 1, 6, 1e4, 9, DType::f32, {}, false, 6, true}};

TEST(Rotary, Split) {
  on_every_device([](OpContext& ctx) {
    for (const RotaryCase& r : cases) {
      const std::int64_t nq = r.heads * r.c, nk = r.kv_heads * r.c, width = nq + 2 * nk;
      const std::string name = fmt::format("{}x{}x{}x{} {}", r.rows, r.heads, r.kv_heads, r.c, name_of(r.dtype));
      const Input qkv = ctx.normal(r.dtype, {r.rows, width}, 1);
      const Input position = ctx.integers(DType::i32, {r.rows}, 0, r.positions);
      const Tensor q = ctx.poisoned(r.dtype, {r.rows, nq}), k = ctx.poisoned(r.dtype, {r.rows, nk});
      const Tensor v = ctx.poisoned(r.dtype, {r.rows, nk});
      const RotaryShape shape = r.shape();
      ctx.stream().split_rotary(q, k, v, qkv.tensor, r.theta == 0 ? Tensor() : position.tensor, shape);
      Values eq, ek, ev;
      for (std::int64_t t = 0; t < r.rows; ++t) {
        Values row(qkv.values.begin() + t * width, qkv.values.begin() + (t + 1) * width);
        for (std::int64_t h = 0; h < r.heads + r.kv_heads && r.theta != 0; ++h) {
          oracle::rotate(row.data() + h * r.c, shape, oracle::at(position.values, t));
        }
        eq.insert(eq.end(), row.begin(), row.begin() + nq);
        ek.insert(ek.end(), row.begin() + nq, row.begin() + nq + nk);
        ev.insert(ev.end(), row.begin() + nq + nk, row.end());
      }
      const double tolerance = r.dtype == DType::f32 ? 1e-6 : 0.004;
      ctx.expect("q " + name, q, eq, tolerance);
      ctx.expect("k " + name, k, ek, tolerance);
      ctx.expect("v " + name, v, ev, 0);
    }
  });
}

// <split(x), y> = <x, merge(y)>.
TEST(Rotary, MergeIsTheAdjointOfSplit) {
  on_every_device([](OpContext& ctx) {
    for (const RotaryCase& r : cases) {
      if (r.dtype != DType::f32) {
        continue;
      }
      const std::int64_t nq = r.heads * r.c, nk = r.kv_heads * r.c, width = nq + 2 * nk;
      const Input position = ctx.integers(DType::i32, {r.rows}, 0, r.positions);
      const Input dq = ctx.normal(r.dtype, {r.rows, nq}, 1), dk = ctx.normal(r.dtype, {r.rows, nk}, 1);
      const Input dv = ctx.normal(r.dtype, {r.rows, nk}, 1), x = ctx.normal(r.dtype, {r.rows, width}, 1);
      const Tensor dqkv = ctx.poisoned(r.dtype, {r.rows, width});
      const Tensor q = ctx.poisoned(r.dtype, {r.rows, nq}), k = ctx.poisoned(r.dtype, {r.rows, nk});
      const Tensor v = ctx.poisoned(r.dtype, {r.rows, nk});
      const RotaryShape shape = r.shape();
      ctx.stream().split_rotary(q, k, v, x.tensor, position.tensor, shape);
      ctx.stream().merge_rotary_backward(dqkv, dq.tensor, dk.tensor, dv.tensor, position.tensor, shape);
      const double forward =
          inner(ctx.values_of(q), dq.values) + inner(ctx.values_of(k), dk.values) + inner(ctx.values_of(v), dv.values);
      EXPECT_NEAR(inner(ctx.values_of(dqkv), x.values), forward, 1e-5 * (1 + std::abs(forward)));
      ctx.same_bits(fmt::format("dqkv {} {}", r.rows, r.c), dqkv);
    }
  });
}

// Queries apart from keys and values give the bits that they give together.
TEST(Rotary, HeadsAndKeyHeadsApart) {
  on_every_device([](OpContext& ctx) {
    for (const RotaryCase& r : cases) {
      const std::int64_t nq = r.heads * r.c, nk = r.kv_heads * r.c;
      const Input position = ctx.integers(DType::i32, {r.rows}, 0, r.positions);
      const Tensor at = r.theta == 0 ? Tensor() : position.tensor;
      const RotaryShape both = r.shape();
      RotaryShape queries = both, keys = both;
      queries.kv_heads = keys.heads = 0;
      const Input in_q = ctx.normal(r.dtype, {r.rows, nq}, 1), in_kv = ctx.normal(r.dtype, {r.rows, 2 * nk}, 1);
      Values rows;  // q, k and v of each row, side by side
      for (std::int64_t t = 0; t < r.rows; ++t) {
        rows.insert(rows.end(), in_q.values.begin() + t * nq, in_q.values.begin() + (t + 1) * nq);
        rows.insert(rows.end(), in_kv.values.begin() + t * 2 * nk, in_kv.values.begin() + (t + 1) * 2 * nk);
      }
      auto empty = [&](std::int64_t width) { return ctx.poisoned(r.dtype, {r.rows, width}); };
      Stream& s = ctx.stream();
      const Tensor q = empty(nq), k = empty(nk), v = empty(nk), q_apart = empty(nq), k_apart = empty(nk);
      const Tensor v_apart = empty(nk), together = ctx.input(r.dtype, {r.rows, nq + 2 * nk}, rows).tensor;
      s.split_rotary(q, k, v, together, at, both);
      s.split_rotary(q_apart, {}, {}, in_q.tensor, at, queries);
      s.split_rotary({}, k_apart, v_apart, in_kv.tensor, at, keys);
      EXPECT_EQ(ctx.values_of(q_apart), ctx.values_of(q));
      EXPECT_EQ(ctx.values_of(k_apart), ctx.values_of(k));
      EXPECT_EQ(ctx.values_of(v_apart), ctx.values_of(v));
      const Tensor d = empty(nq + 2 * nk), dq = empty(nq), dkv = empty(2 * nk);
      s.merge_rotary_backward(d, q, k, v, at, both);
      s.merge_rotary_backward(dq, q, {}, {}, at, queries);
      s.merge_rotary_backward(dkv, {}, k, v, at, keys);
      const Values whole = ctx.values_of(d), of_q = ctx.values_of(dq), of_kv = ctx.values_of(dkv);
      Values joined;
      for (std::int64_t t = 0; t < r.rows; ++t) {
        joined.insert(joined.end(), of_q.begin() + t * nq, of_q.begin() + (t + 1) * nq);
        joined.insert(joined.end(), of_kv.begin() + t * 2 * nk, of_kv.begin() + (t + 1) * 2 * nk);
      }
      EXPECT_EQ(joined, whole);
    }
  });
}

TEST(Rotary, RefusesOddChannelsAndNoFactor) {
  on_every_device([](OpContext& ctx) {
    const Tensor position = ctx.integers(DType::i32, {2}, 0, 5).tensor;
    const auto message = [&](const RotaryShape& shape) {
      const Tensor x = ctx.normal(DType::f32, {2, shape.head_dim}, 1).tensor;
      return error_of(
          [&] { ctx.stream().split_rotary(ctx.poisoned(DType::f32, x.shape()), {}, {}, x, position, shape); });
    };
    EXPECT_NE(message({.heads = 1, .head_dim = 6, .plain = 3}).find("3 of 6 of a head stay"), std::string::npos);
    EXPECT_NE(message({.heads = 1, .head_dim = 6, .plain = 8}).find("8 of 6 of a head stay"), std::string::npos);
    EXPECT_NE(message({.heads = 1, .head_dim = 6, .scaling = {.factor = 0}}).find("divided by 0"), std::string::npos);
  });
}

}  // namespace
}  // namespace orthant::test::rotary_test
