// Rounding by chance and optimizer states in 8 bits: against their definition in fp64 with the same random bits, right
// on average, and the same wherever a slice is cut.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/low_memory_oracle.h"
#include "tests/support/op_harness.h"

namespace orthant::test::low_memory_test {
namespace {

using namespace low_memory;

constexpr RandomKey some_key{0x1234567890ABCDEF, Purpose::rounding, 77, 5};
constexpr double infinity = std::numeric_limits<double>::infinity();

// --- bf16

TEST(LowMemory, CastByChanceIsTheDefinition) {
  on_every_device([](OpContext& c) {
    for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 67}, {5, 128}, {2, 130}}) {
      const Input x = c.normal(DType::f32, {rows, columns}, 3);
      const SliceMap at{7, 5, 1003};
      const Tensor y = c.poisoned(DType::bf16, {rows, columns});
      c.stream().stochastic_cast(y, x.tensor, some_key, at);
      Values expected;
      for (std::int64_t i = 0; i < rows * columns; ++i) {
        const std::uint32_t random = random_bits(some_key, index_of(at, i / columns, i % columns));
        expected.push_back(bf16_by_chance(x.values[static_cast<std::size_t>(i)], random));
      }
      c.expect(fmt::format("{} by {}", rows, columns), y, expected, 0);
    }
  });
}

TEST(LowMemory, CastByChanceKeepsWhatBf16Holds) {
  on_every_device([](OpContext& c) {
    const Values held = {
        0, 1, -1.5, 3.140625, -0.0, std::ldexp(1.0, -133), -std::ldexp(255.0, 120), infinity, -infinity, std::nan("")};
    const auto n = static_cast<std::int64_t>(held.size());
    const Input x = c.input(DType::f32, {1, n}, held);
    for (std::uint32_t step = 0; step < 20; ++step) {
      const Tensor y = c.poisoned(DType::bf16, {1, n});
      c.stream().stochastic_cast(y, x.tensor, {1, Purpose::rounding, 2, step}, {0, 0, n});
      c.expect(fmt::format("step {}", step), y, held, 0);
    }
  });
}

TEST(LowMemory, CastByChanceIsRightOnAverage) {
  on_every_device([](OpContext& c) {
    const Values at = {1.001, -1.0001, 0.3, 1234.5678, -7e-20, 1.00389};
    const auto n = static_cast<std::int64_t>(at.size());
    const Input x = c.input(DType::f32, {1, n}, at);
    constexpr std::uint32_t steps = 2000;
    Values sum(at.size(), 0), squares(at.size(), 0);
    for (std::uint32_t step = 0; step < steps; ++step) {
      const Tensor y = c.poisoned(DType::bf16, {1, n});
      c.stream().stochastic_cast(y, x.tensor, {3, Purpose::rounding, 9, step}, {0, 0, n});
      const Values got = c.values_of(y);
      for (std::size_t i = 0; i < got.size(); ++i) {
        sum[i] += got[i];
        squares[i] += (got[i] - x.values[i]) * (got[i] - x.values[i]);
      }
    }
    for (std::size_t i = 0; i < at.size(); ++i) {
      EXPECT_GT(squares[i], 0) << "it was rounded";
      const double deviation = std::sqrt(squares[i]) / steps;  // of the mean
      EXPECT_LE(std::abs(sum[i] / steps - x.values[i]), 4.5 * deviation) << at[i];
    }
  });
}

// --- 8 bits

constexpr StateCode codes[] = {StateCode::with_sign, StateCode::positive};

struct Stored {
  Tensor code, exponent;
};
Stored encoded(OpContext& c, const Tensor& x, StateCode how, const RandomKey& key, const SliceMap& at) {
  const Stored to{c.poisoned(DType::u8, x.shape()), c.poisoned(DType::u8, {x.elements() / state_block})};
  c.stream().encode_state(to.code, to.exponent, x, how, key, at);
  return to;
}
Values decoded(OpContext& c, const Stored& from, StateCode how) {
  const Tensor x = c.poisoned(DType::f32, from.code.shape());
  c.stream().decode_state(x, from.code, from.exponent, how);
  return c.values_of(x);
}

// Numbers of all sizes: the largest of a block is up to 2^40 times its smallest.
Input of_all_sizes(OpContext& c, Shape shape, bool positive) {
  Input x = c.normal(DType::f32, shape, 1);
  for (std::size_t i = 0; i < x.values.size(); ++i) {
    const double v = std::ldexp(x.values[i], -static_cast<int>(i * 7 % 41) + static_cast<int>(i / 300));
    x.values[i] = positive ? std::abs(v) : v;
  }
  return c.input(DType::f32, shape, x.values);
}

TEST(LowMemory, StatesInEightBitsAreTheDefinition) {
  on_every_device([](OpContext& c) {
    for (const StateCode how : codes) {
      const Shape shape{6, 96};
      const Input x = of_all_sizes(c, shape, how == StateCode::positive);
      const SliceMap at{3, 64, 224};
      const Stored stored = encoded(c, x.tensor, how, some_key, at);
      Values exponents, numbers;
      for (std::size_t b = 0; b < x.values.size() / 32; ++b) {
        double most = 0;
        for (std::size_t i = b * 32; i < b * 32 + 32; ++i) {
          most = std::max(most, std::abs(x.values[i]));
        }
        exponents.push_back(exponent_of(most));
        for (std::size_t i = b * 32; i < b * 32 + 32; ++i) {
          const auto n = static_cast<std::int64_t>(i);
          numbers.push_back(by_chance(how, x.values[i], static_cast<std::uint8_t>(exponents.back()),
                                      random_bits(some_key, index_of(at, n / 96, n % 96))));
        }
      }
      c.expect("exponents", stored.exponent, exponents, 0);
      c.same_bits("codes", stored.code);
      EXPECT_EQ(decoded(c, stored, how), numbers);
    }
  });
}

TEST(LowMemory, WhatWasDecodedIsEncodedAsItself) {
  on_every_device([](OpContext& c) {
    for (const StateCode how : codes) {
      const Shape shape{32, 64};
      const Input x = of_all_sizes(c, shape, how == StateCode::positive);
      const Values once = decoded(c, encoded(c, x.tensor, how, some_key, {0, 0, 64}), how);
      const Tensor again = c.input(DType::f32, shape, once).tensor;
      EXPECT_EQ(decoded(c, encoded(c, again, how, {9, Purpose::rounding, 8, 7}, {5, 0, 64}), how), once);
    }
  });
}

TEST(LowMemory, ASliceIsEncodedAsTheWhole) {
  on_every_device([](OpContext& c) {
    for (const StateCode how : codes) {
      const Input x = of_all_sizes(c, {4, 64}, how == StateCode::positive);
      const Values whole = decoded(c, encoded(c, x.tensor, how, some_key, {0, 0, 64}), how);
      for (const std::int64_t row : {0, 2}) {
        for (const std::int64_t column : {0, 32}) {  // two rows of one block
          Values part, expected;
          for (std::int64_t i = 0; i < 64; ++i) {
            const auto from = static_cast<std::size_t>((row + i / 32) * 64 + column + i % 32);
            part.push_back(x.values[from]);
            expected.push_back(whole[from]);
          }
          const Tensor slice = c.input(DType::f32, {2, 32}, part).tensor;
          EXPECT_EQ(decoded(c, encoded(c, slice, how, some_key, {row, column, 64}), how), expected);
        }
      }
    }
  });
}

TEST(LowMemory, StatesOfExtremeSizes) {
  on_every_device([](OpContext& c) {
    for (const StateCode how : codes) {
      const bool positive = how == StateCode::positive;
      Values x(160, 0);  // the first block: zeros
      x[32] = 1;
      x[33] = 1e-30;  // far below what the block can tell
      x[64] = infinity;
      x[65] = 3;
      x[96] = 3.4e38;  // above the largest number of its block: this becomes it
      x[97] = 1e-38;
      x[128] = 1.4e-45;
      x[129] = 9.8e-45;
      const Stored stored = encoded(c, c.input(DType::f32, {1, 160}, x).tensor, how, some_key, {0, 0, 160});
      const Values got = decoded(c, stored, how);
      EXPECT_EQ(Values(got.begin(), got.begin() + 33), Values(x.begin(), x.begin() + 33));
      EXPECT_EQ(got[33], positive ? std::ldexp(1.0, -33) : 0) << "a second moment never becomes zero";
      for (std::size_t i = 64; i < 96; ++i) {
        EXPECT_TRUE(std::isnan(got[i])) << i;
      }
      EXPECT_EQ(got[96], std::ldexp(1.875, 127));
      for (const std::size_t i : {std::size_t{128}, std::size_t{129}}) {
        const double f32 = static_cast<double>(static_cast<float>(x[i]));
        EXPECT_NEAR(got[i], f32, positive ? 0 : std::ldexp(1.0, -144)) << i;
      }
    }
  });
}

// A second moment whose decay is far below a step of its code: to the nearest it would stand still for ever.
TEST(LowMemory, SlowMomentsMove) {
  on_every_device([](OpContext& c) {
    const Shape shape{8, 64};
    const Tensor v = c.constant(DType::f32, shape, 1).tensor;
    constexpr int steps = 200;
    for (std::uint32_t step = 0; step < steps; ++step) {
      c.stream().scale(v, 0.995f);
      const Stored stored = encoded(c, v, StateCode::positive, {4, Purpose::rounding, 1, step}, {0, 0, 64});
      c.stream().decode_state(v, stored.code, stored.exponent, StateCode::positive);
    }
    double mean = 0;
    for (const double x : c.values_of(v)) {
      mean += x / 512;
    }
    // A step of the code is at most an eighth: each of these 512 walks ends within some 20 % of the mean.
    EXPECT_NEAR(mean / std::pow(0.995, steps), 1, 0.05);
  });
}

TEST(LowMemory, OtherShapesAreRefused) {
  const auto device = make_cpu_device(1);
  OpContext c(*device);
  const Tensor x = c.poisoned(DType::f32, {2, 48}), code = c.poisoned(DType::u8, {2, 48});
  const Tensor flat = c.poisoned(DType::f32, {64}), bytes = c.poisoned(DType::u8, {64});
  const Tensor exponents = c.poisoned(DType::u8, {3});
  EXPECT_THROW(c.stream().encode_state(code, exponents, x, StateCode::positive, some_key, {0, 0, 48}), Error);
  EXPECT_THROW(c.stream().decode_state(flat, bytes, exponents, StateCode::positive), Error);
  EXPECT_THROW(c.stream().decode_state(flat, bytes, c.poisoned(DType::u8, {2}), StateCode::none), Error);
  EXPECT_THROW(c.stream().stochastic_cast(c.poisoned(DType::f32, {2, 48}), x, some_key, {0, 0, 48}), Error);
}

}  // namespace
}  // namespace orthant::test::low_memory_test
