// Operations on random numbers: keyed by global index, so slices agree with the whole.
#include <algorithm>

#include "tests/ops/oracle.h"

namespace orthant::test::random_test {
namespace {

const RandomKey key{77, Purpose::dropout, 3, 9};

TEST(Random, InitNormalOfASliceIsTheSliceOfTheWhole) {
  on_every_device([](OpContext& c) {
    const Tensor whole = c.poisoned(DType::f32, {40, 50}), part = c.poisoned(DType::f32, {7, 11});
    c.stream().init_normal(whole, key, 0.02f, {0, 0, 50});
    c.stream().init_normal(part, key, 0.02f, {5, 13, 50});
    const Values all = c.values_of(whole);
    Values expected;
    double sum = 0, squares = 0;
    for (const double x : all) {
      sum += x;
      squares += x * x;
    }
    for (std::int64_t r = 5; r < 12; ++r) {
      for (std::int64_t j = 13; j < 24; ++j) {
        expected.push_back(oracle::at(all, r * 50 + j));
      }
    }
    c.expect("part", part, expected, 0);
    c.same_bits("whole", whole);
    EXPECT_NEAR(sum / 2000, 0, 0.02 * 4 / std::sqrt(2000.0));
    EXPECT_NEAR(std::sqrt(squares / 2000), 0.02, 0.02 * 0.1);
  });
}

// Tests of sizes for which the host is too slow draw on the device.
TEST(Random, TheHarnessDrawsTheNumbersOfTheHost) {
  on_every_device([](OpContext& c) {
    OpContext same(c.device());
    const Input here = c.normal(DType::bf16, {5, 7, 9}, 0.5);
    const Tensor there = same.drawn(DType::bf16, {5, 7, 9}, 0.5);
    c.expect("drawn", there, here.values, 1e-2);
  });
}

TEST(Random, Dropout) {
  on_every_device([](OpContext& c) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const std::int64_t rows = 64, d = 50;
      const Input x = c.constant(dtype, {rows, d}, 3), token = c.integers(DType::i64, {rows}, 0, 1000000000000);
      const Tensor y = c.poisoned(dtype, {rows, d}), part = c.poisoned(dtype, {rows, 20});
      c.stream().dropout(y, x.tensor, token.tensor, key, 0.25f, {0, 0, d});
      const Values out = c.values_of(y);
      double kept = 0;
      for (const double v : out) {
        ASSERT_TRUE(v == 0 || std::abs(v - 4) < 1e-5) << v;
        kept += v != 0 ? 1 : 0;
      }
      EXPECT_NEAR(kept / static_cast<double>(rows * d), 0.75, 0.04);
      // Columns 30 .. 49 of a rank that holds only those.
      Values expected;
      for (std::int64_t t = 0; t < rows; ++t) {
        for (std::int64_t j = 30; j < d; ++j) {
          expected.push_back(oracle::at(out, t * d + j));
        }
      }
      c.stream().dropout(part, c.constant(dtype, {rows, 20}, 3).tensor, token.tensor, key, 0.25f, {0, 30, d});
      c.expect(fmt::format("part {}", name_of(dtype)), part, expected, 0);
      // In place; and a token gets its mask in whatever row it lies.
      c.stream().dropout(x.tensor, x.tensor, token.tensor, key, 0.25f, {0, 0, d});
      c.expect(fmt::format("in place {}", name_of(dtype)), x.tensor, out, 0);
      const Tensor one = c.poisoned(dtype, {1, d});
      c.stream().dropout(one, c.constant(dtype, {1, d}, 3).tensor, token.tensor.rows(17, 1), key, 0.25f, {0, 0, d});
      c.expect(fmt::format("row 17 {}", name_of(dtype)), one, Values(out.begin() + 17 * d, out.begin() + 18 * d), 0);
    }
  });
}

TEST(Random, JitterStaysInItsInterval) {
  on_every_device([](OpContext& c) {
    const Input x = c.constant(DType::f32, {100, 33}, 2), token = c.integers(DType::i64, {100}, 0, 1 << 20);
    const Tensor y = c.poisoned(DType::f32, {100, 33});
    c.stream().jitter(y, x.tensor, token.tensor, key, 0.1f);
    double low = 10, high = 0, sum = 0;
    for (const double v : c.values_of(y)) {
      low = std::min(low, v);
      high = std::max(high, v);
      sum += v;
    }
    EXPECT_GE(low, 1.8 - 1e-6);
    EXPECT_LT(low, 1.805);
    EXPECT_LE(high, 2.2 + 1e-6);
    EXPECT_GT(high, 2.195);
    EXPECT_NEAR(sum / 3300, 2.0, 0.01);
    c.same_bits("y", y);
  });
}

}  // namespace
}  // namespace orthant::test::random_test
