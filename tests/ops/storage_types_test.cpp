// i8 and the 8-bit floats: casts against their definition (op_harness.cpp: the nearest of all 256 values), quantise and
// dequantise against a plain loop.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/op_harness.h"

namespace orthant::test::storage_types_test {
namespace {

constexpr DType storage_types[] = {DType::i8, DType::f8_e4m3, DType::f8_e5m2};

// All 256 bytes of a type, with the values they stand for.
Input every_byte(OpContext& c, DType dtype) {
  std::vector<std::uint8_t> bytes(256);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::uint8_t>(i);
  }
  Input all{c.device().empty(dtype, {256}), {}};
  c.stream().upload(all.tensor, bytes.data());
  all.values = c.values_of(all.tensor);
  return all;
}

TEST(StorageTypes, EveryByteWidensExactlyAndComesBack) {
  on_every_device([](OpContext& c) {
    for (const DType dtype : storage_types) {
      const Input all = every_byte(c, dtype);
      for (const DType wide : {DType::f32, DType::bf16}) {
        const Tensor x = c.poisoned(wide, {256}), back = c.poisoned(dtype, {256});
        c.stream().cast(x, all.tensor);
        c.expect(fmt::format("{} to {}", name_of(dtype), name_of(wide)), x, all.values, 0);
        c.stream().cast(back, x);
        Values expected = all.values;
        for (double& v : expected) {
          v = std::isnan(v) ? v : rounded(dtype, v);  // infinity is the largest number afterwards
        }
        c.expect(fmt::format("{} to {} and back", name_of(dtype), name_of(wide)), back, expected, 0);
      }
    }
  });
}

TEST(StorageTypes, KnownNumbers) {
  on_every_device([](OpContext& c) {
    const auto value = [&](DType dtype, std::uint8_t byte) { return every_byte(c, dtype).values[byte]; };
    EXPECT_EQ(value(DType::f8_e4m3, 0x7E), 448);
    EXPECT_EQ(value(DType::f8_e4m3, 0x01), std::ldexp(1.0, -9));
    EXPECT_TRUE(std::isnan(value(DType::f8_e4m3, 0xFF)));
    EXPECT_EQ(value(DType::f8_e5m2, 0x7B), 57344);
    EXPECT_EQ(value(DType::f8_e5m2, 0x01), std::ldexp(1.0, -16));
    EXPECT_EQ(value(DType::f8_e5m2, 0xFC), -std::numeric_limits<double>::infinity());
    EXPECT_EQ(value(DType::i8, 0x80), -128);
  });
}

// Each number of a type, each middle between two neighbours, and the floats next to both, on either side of zero; what
// is too large; and what is not finite.
Values boundaries(DType dtype) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  Values all = {0.0,   -0.0,  1e-30, -1e-30, 1e-45, 449,    464, 465,  480,      500,       57344,       61439,
                61440, 61441, 65536, 1e38,   127.5, -128.5, 128, -129, infinity, -infinity, std::nan("")};
  std::vector<float> numbers;
  for (float x = 0; numbers.size() < 128;) {  // upwards, by asking for the next one
    numbers.push_back(x);
    float step = x == 0 ? std::ldexp(1.0f, -20) : x * 0.03f;
    float above = x;
    while (above < 70000 && static_cast<float>(rounded(dtype, above)) <= x) {
      above += step;
    }
    if (above >= 70000) {
      break;
    }
    x = static_cast<float>(rounded(dtype, above));
  }
  for (std::size_t i = 0; i + 1 < numbers.size(); ++i) {
    for (const float x : {numbers[i], (numbers[i] + numbers[i + 1]) / 2}) {
      for (const float near : {std::nextafter(x, -infinity), x, std::nextafter(x, infinity)}) {
        all.push_back(near);
        all.push_back(-near);
      }
    }
  }
  return all;
}

TEST(StorageTypes, CastsRoundToTheNearestEvenAndSaturate) {
  on_every_device([](OpContext& c) {
    for (const DType dtype : storage_types) {
      for (const DType wide : {DType::f32, DType::bf16}) {
        const Values at = boundaries(dtype);
        ASSERT_GT(at.size(), 500u);
        const auto n = static_cast<std::int64_t>(at.size());
        const Input x = c.input(wide, {n}, at);
        const Tensor q = c.poisoned(dtype, {n});
        c.stream().cast(q, x.tensor);
        Values expected = x.values;
        for (double& v : expected) {
          v = rounded(dtype, v);
        }
        c.expect(fmt::format("{} to {}", name_of(wide), name_of(dtype)), q, expected, 0);
      }
    }
  });
}

TEST(StorageTypes, RandomNumbersOfAllSizes) {
  on_every_device([](OpContext& c) {
    for (const DType dtype : storage_types) {
      for (const std::int64_t n : {1, 7, 1000, 20001}) {
        const Input x = c.normal(DType::f32, {n}, 30);
        const Tensor q = c.poisoned(dtype, {n});
        c.stream().cast(q, x.tensor);
        Values expected = x.values;
        for (double& v : expected) {
          v = rounded(dtype, v);
        }
        c.expect(fmt::format("{} {}", name_of(dtype), n), q, expected, 0);
      }
    }
  });
}

TEST(StorageTypes, FillSaturates) {
  on_every_device([](OpContext& c) {
    for (const DType dtype : storage_types) {
      for (const double value : {0.0, 3.0, -1.4, 1e9, -1e9}) {
        const Tensor t = c.poisoned(dtype, {33});
        c.stream().fill(t, value);
        c.expect(fmt::format("{} {}", name_of(dtype), value), t, Values(33, rounded(dtype, value)), 0);
      }
    }
  });
}

double largest_of(DType dtype) {
  return dtype == DType::i8 ? 127 : dtype == DType::f8_e4m3 ? 448 : 57344;
}

TEST(StorageTypes, QuantiseByBlocks) {
  on_every_device([](OpContext& c) {
    for (const DType dtype : storage_types) {
      for (const DType wide : {DType::f32, DType::bf16}) {
        for (const auto& [n, block] :
             {std::pair<std::int64_t, std::int64_t>{1, 1}, {100, 7}, {5000, 128}, {300, 1000}}) {
          const std::string name = fmt::format("{} of {} {} by {}", name_of(dtype), name_of(wide), n, block);
          const Input x = c.normal(wide, {n}, 2);
          const std::int64_t blocks = (n + block - 1) / block;
          const Tensor q = c.poisoned(dtype, {n}), scale = c.poisoned(DType::f32, {blocks}), y = c.poisoned(wide, {n});
          c.stream().quantise(q, scale, x.tensor, block);
          Values scales, stored, back;
          for (std::int64_t b = 0; b < blocks; ++b) {
            const auto first = x.values.begin() + b * block, end = x.values.begin() + std::min(n, (b + 1) * block);
            float most = 0;
            for (auto v = first; v != end; ++v) {
              most = std::max(most, static_cast<float>(std::abs(*v)));
            }
            const float s = most / static_cast<float>(largest_of(dtype));
            scales.push_back(s);
            for (auto v = first; v != end; ++v) {
              stored.push_back(rounded(dtype, static_cast<float>(*v) / s));
              back.push_back(rounded(wide, static_cast<float>(stored.back()) * s));
            }
          }
          c.expect("scale " + name, scale, scales, 0);
          c.expect("q " + name, q, stored, 0);
          c.stream().dequantise(y, q, scale, block);
          c.expect("x " + name, y, back, 0);
        }
      }
    }
  });
}

TEST(StorageTypes, QuantiseOfZerosAndOfWhatIsNotFinite) {
  on_every_device([](OpContext& c) {
    const double infinity = std::numeric_limits<double>::infinity(), nan = std::nan("");
    const Input x = c.input(DType::f32, {8}, {0, 0, 1, infinity, nan, 2, 3, -4});
    for (const DType dtype : storage_types) {
      const Tensor q = c.poisoned(dtype, {8}), scale = c.poisoned(DType::f32, {4}), y = c.poisoned(DType::f32, {8});
      c.stream().quantise(q, scale, x.tensor, 2);
      const double s = static_cast<float>(4 / largest_of(dtype));
      c.expect("scale", scale, {0, nan, nan, 4.0f / static_cast<float>(largest_of(dtype))}, 1e-7);
      EXPECT_NEAR(s * largest_of(dtype), 4, 1e-5);
      const Values got = c.values_of(q);
      EXPECT_EQ(Values(got.begin(), got.begin() + 6), Values(6, 0));
      c.stream().dequantise(y, q, scale, 2);
      EXPECT_EQ(c.values_of(y)[0], 0);
      EXPECT_TRUE(std::isnan(c.values_of(y)[2]));
    }
  });
}

TEST(StorageTypes, NoOtherOperationTakesThem) {
  const auto device = make_cpu_device(1);
  OpContext c(*device);
  const Tensor q = c.poisoned(DType::f8_e4m3, {4}), i = c.poisoned(DType::i8, {4}), x = c.poisoned(DType::f32, {4});
  EXPECT_THROW(c.stream().add(q, x), Error);
  EXPECT_THROW(c.stream().scale(i, 2), Error);
  EXPECT_THROW(c.stream().cast(q, i), Error);
  EXPECT_THROW(c.stream().cast(c.poisoned(DType::f64, {4}), q), Error);
  EXPECT_THROW(c.stream().quantise(x, c.poisoned(DType::f32, {1}), x, 4), Error);
  EXPECT_THROW(c.stream().quantise(q, c.poisoned(DType::f32, {2}), x, 4), Error);
}

}  // namespace
}  // namespace orthant::test::storage_types_test
