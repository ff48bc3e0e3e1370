// Elements of 16 and 8 bits by their definition, and scales of blocks by a plain loop.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "apps/pretrained/source_floats.h"
#include "tests/support/error_of.h"
#include "tests/support/run_supervisor.h"

namespace orthant::source_floats_test {
namespace {

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

// (-1)^s 2^(e - bias) 1.m, or 2^(1 - bias) 0.m where e is 0.
double defined(unsigned bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double mantissa = std::ldexp(bits & ((1u << mantissa_bits) - 1), -mantissa_bits);
  const double size = exponent == 0 ? std::ldexp(mantissa, 1 - bias) : std::ldexp(1 + mantissa, exponent - bias);
  return (bits >> (exponent_bits + mantissa_bits) & 1u) != 0 ? -size : size;
}

TEST(SourceFloats, EveryFiniteHalfHasItsValue) {
  const launch_test::TemporaryFolder folder;
  std::vector<std::uint16_t> halves;
  for (unsigned bits = 0; bits < 1u << 16; ++bits) {
    if ((bits >> 10 & 0x1Fu) != 0x1Fu) {
      halves.push_back(static_cast<std::uint16_t>(bits));
    }
  }
  const std::int64_t count = static_cast<std::int64_t>(halves.size());
  const std::vector<std::uint16_t> odd = {0x3C00, 0x7C00, 0x7E00};
  write_safetensors(folder.path() / "model.safetensors",
                    {{.name = "all", .dtype = FileType::f16(), .sizes = {count}},
                     {.name = "infinite", .dtype = FileType::f16(), .sizes = {3}}},
                    {bytes_of(halves), bytes_of(odd)});
  const SourceWeights weights(folder.path());
  const SourceFloats floats(weights, {}, false);
  std::vector<float> read(halves.size());
  floats.read("all", 0, read);
  for (std::size_t i = 0; i < halves.size(); ++i) {
    ASSERT_EQ(static_cast<double>(read[i]), defined(halves[i], 5, 10)) << halves[i];
    ASSERT_EQ(std::signbit(read[i]), halves[i] >> 15 != 0) << halves[i];
  }
  std::vector<float> one(1);
  EXPECT_NE(test::error_of([&] { floats.read("infinite", 1, one); }).find("holds inf at element 1"), std::string::npos);
  EXPECT_NE(test::error_of([&] { floats.read("infinite", 2, one); }).find("holds nan at element 2"), std::string::npos);
}

TEST(SourceFloats, BlocksOfFourBitsHaveTheirValues) {
  const launch_test::TemporaryFolder folder;
  std::vector<std::uint8_t> bytes(6 * 16);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::uint8_t>(i * 67 + 5);
  }
  const std::vector<std::uint8_t> scales = {127, 120, 0, 130, 254, 255}, few = {1, 2, 3};
  write_safetensors(
      folder.path() / "model.safetensors",
      {{.name = "w_blocks", .dtype = DType::u8, .sizes = {3, 2, 16}},
       {.name = "w_scales", .dtype = DType::u8, .sizes = {3, 2}},
       {.name = "alone_blocks", .dtype = DType::u8, .sizes = {3, 16}},
       {.name = "few_blocks", .dtype = DType::u8, .sizes = {6, 16}},
       {.name = "few_scales", .dtype = DType::u8, .sizes = {3}}},
      {bytes_of(bytes), bytes_of(scales), std::as_bytes(std::span(bytes).first(48)), bytes_of(bytes), bytes_of(few)});
  const SourceWeights weights(folder.path());
  const SourceFloats floats(weights, {}, true);
  EXPECT_EQ(floats.unreadable(*weights.find("w_blocks")), "");
  EXPECT_NE(SourceFloats(weights, {}, false).unreadable(*weights.find("w_blocks")).find("says \"mxfp4\""),
            std::string::npos);
  EXPECT_NE(floats.unreadable(*weights.find("alone_blocks")).find("scales are missing: alone_scales"),
            std::string::npos);
  EXPECT_NE(floats.unreadable(*weights.find("few_blocks")).find("few_scales is U8 [3], where [6]"), std::string::npos);
  EXPECT_NE(floats.unreadable(*weights.find("few_scales")).find("few_scales is U8"), std::string::npos);
  for (const std::size_t begin : {0u, 1u, 37u, 96u}) {
    std::vector<float> read(128 - begin);  // the fifth block overflows with 6 * 2^127
    floats.read("w_blocks", static_cast<std::int64_t>(begin), read);
    for (std::size_t i = begin; i < 128; ++i) {
      const unsigned bits = i % 2 == 0 ? bytes[i / 2] & 15u : bytes[i / 2] >> 4;
      const double value = std::ldexp(defined(bits, 2, 1), int{scales[i / 32]} - 127);
      ASSERT_EQ(static_cast<double>(read[i - begin]), value) << i << " from " << begin;
    }
  }
  std::vector<float> one(1);
  EXPECT_NE(test::error_of([&] { floats.read("w_blocks", 160, one); }).find("holds nan at element 160"),
            std::string::npos);
}

TEST(SourceFloats, EveryElementOfFourBitsHasItsValueAtEveryScale) {
  const launch_test::TemporaryFolder folder;
  std::vector<std::uint8_t> bytes, scales;
  for (unsigned scale = 0; scale < 255; ++scale) {
    scales.push_back(static_cast<std::uint8_t>(scale));
    for (unsigned i = 0; i < 16; ++i) {  // 0 to 15, and down again
      bytes.push_back(static_cast<std::uint8_t>(i < 8 ? 2 * i | (2 * i + 1) << 4 : (31 - 2 * i) | (30 - 2 * i) << 4));
    }
  }
  write_safetensors(folder.path() / "model.safetensors",
                    {{.name = "w_blocks", .dtype = DType::u8, .sizes = {255, 16}},
                     {.name = "w_scales", .dtype = DType::u8, .sizes = {255}}},
                    {bytes_of(bytes), bytes_of(scales)});
  const SourceWeights weights(folder.path());
  const SourceFloats floats(weights, {}, true);
  for (unsigned scale = 0; scale < 255; ++scale) {
    for (const unsigned from : {0u, 16u}) {                // a whole block, and half of one
      const unsigned until = scale < 253 ? 32 : from + 4;  // 6 * 2^126 is the first that f32 has not
      std::vector<float> read(until > from ? until - from : 0);
      if (scale >= 253 && from == 16) {
        continue;  // it begins with 6
      }
      floats.read("w_blocks", scale * 32 + from, read);
      for (unsigned i = from; i < until; ++i) {
        const unsigned bits = i < 16 ? i : 31 - i;
        const double value = std::ldexp(defined(bits, 2, 1), static_cast<int>(scale) - 127);
        ASSERT_EQ(static_cast<double>(read[i - from]), value) << bits << " at " << scale;
        ASSERT_EQ(std::signbit(read[i - from]), bits >= 8) << bits << " at " << scale;
      }
    }
  }
}

TEST(SourceFloats, AMatrixInEightBitsIsMultipliedBlockByBlock) {
  const launch_test::TemporaryFolder folder;
  constexpr std::int64_t rows = 7, columns = 11, block_rows = 3, block_columns = 4;
  std::vector<std::uint8_t> bits(rows * columns);
  for (std::size_t i = 0; i < bits.size(); ++i) {
    bits[i] = static_cast<std::uint8_t>(i * 37 % 127 + (i % 2) * 128);  // none is NaN
  }
  std::vector<float> scales(9);
  for (std::size_t i = 0; i < scales.size(); ++i) {
    scales[i] = 0.1f * static_cast<float>(i + 1);
  }
  write_safetensors(folder.path() / "model.safetensors",
                    {{.name = "w", .dtype = DType::f8_e4m3, .sizes = {rows, columns}},
                     {.name = "w_scale_inv", .dtype = DType::f32, .sizes = {3, 3}}},
                    {bytes_of(bits), bytes_of(scales)});
  const SourceWeights weights(folder.path());
  const SourceFloats floats(weights, ScaleBlocks{block_rows, block_columns}, false);
  EXPECT_EQ(floats.unreadable(*weights.find("w")), "");
  for (std::int64_t begin : {0, 1, 5, 11, 40, 76}) {
    std::vector<float> read(static_cast<std::size_t>(rows * columns - begin));
    floats.read("w", begin, read);
    for (std::int64_t i = begin; i < rows * columns; ++i) {
      const std::int64_t block = i / columns / block_rows * 3 + i % columns / block_columns;
      const double value = defined(bits[static_cast<std::size_t>(i)], 4, 3) *
                           static_cast<double>(scales[static_cast<std::size_t>(block)]);
      ASSERT_EQ(read[static_cast<std::size_t>(i - begin)], static_cast<float>(value)) << i << " from " << begin;
    }
  }
}

// Experts in one tensor: matrices one behind the other, with blocks of gate above up, one of which holds rows of both.
TEST(SourceFloats, ExpertsInOneTensorHaveScalesOfTheirOwn) {
  const launch_test::TemporaryFolder folder;
  constexpr std::int64_t experts = 3, rows = 6, columns = 5, block_rows = 4, block_columns = 3;
  std::vector<std::uint8_t> bits(experts * 2 * rows * columns);
  for (std::size_t i = 0; i < bits.size(); ++i) {
    bits[i] = static_cast<std::uint8_t>(i * 53 % 127 + (i % 2) * 128);
  }
  std::vector<float> blocks(experts * 3 * 2), whole(experts * 2), shared(experts);
  for (std::vector<float>* scales : {&blocks, &whole, &shared}) {
    for (std::size_t i = 0; i < scales->size(); ++i) {
      (*scales)[i] = 0.3f * static_cast<float>(i + 1);
    }
  }
  const std::vector<std::int64_t> sizes = {experts, 2 * rows, columns};
  const auto file = [&](const char* name, const std::vector<float>& scales, std::vector<std::int64_t> shape) {
    write_safetensors(folder.path() / "model.safetensors",
                      {{.name = name, .dtype = DType::f8_e4m3, .sizes = sizes},
                       {.name = std::string(name) + "_scale_inv", .dtype = DType::f32, .sizes = std::move(shape)}},
                      {bytes_of(bits), bytes_of(scales)});
  };
  const auto check = [&](const char* name, ScaleBlocks size, const auto& scale_of) {
    const SourceWeights weights(folder.path());
    const SourceFloats floats(weights, size, false);
    EXPECT_EQ(floats.unreadable(*weights.find(name)), "");
    for (const std::size_t begin : {0u, 1u, 29u, 61u}) {
      std::vector<float> read(bits.size() - begin);
      floats.read(name, static_cast<std::int64_t>(begin), read);
      for (std::size_t i = begin; i < bits.size(); ++i) {
        const auto at = static_cast<std::int64_t>(i);
        const double value =
            defined(bits[i], 4, 3) *
            static_cast<double>(scale_of(at / columns / (2 * rows), at / columns % (2 * rows), at % columns));
        ASSERT_EQ(read[i - begin], static_cast<float>(value)) << name << " " << i << " from " << begin;
      }
    }
  };
  const auto refusal = [&](const char* name, ScaleBlocks size) {
    const SourceWeights weights(folder.path());
    return SourceFloats(weights, size, false).unreadable(*weights.find(name));
  };
  file("e.gate_up_proj", blocks, {experts, 3, 2});
  check("e.gate_up_proj", {block_rows, block_columns}, [&](std::int64_t e, std::int64_t row, std::int64_t column) {
    return blocks[static_cast<std::size_t>((e * 3 + row / block_rows) * 2 + column / block_columns)];
  });
  EXPECT_EQ(refusal("e.gate_up_proj", {5, block_columns}),
            "e.gate_up_proj is F8_E4M3, and its 12 rows, gate above up, are no whole number of blocks of 5 x 3: which "
            "scale is whose is not known");
  EXPECT_NE(refusal("e.gate_up_proj", {6, block_columns}).find("is F32 [3, 3, 2], where [3, 2, 2] of F32"),
            std::string::npos);
  // A block of gate and the next of up, and two scales where one block holds both.
  file("e.gate_up_proj", whole, {experts, 2, 1});
  check("e.gate_up_proj", {rows, columns}, [&](std::int64_t e, std::int64_t row, std::int64_t) {
    return whole[static_cast<std::size_t>(e * 2 + row / rows)];
  });
  EXPECT_NE(refusal("e.gate_up_proj", {16, columns}).find("no whole number of blocks of 16 x 5"), std::string::npos);
  file("e.gate_up_proj", whole, {experts, 2, 1});
  check("e.gate_up_proj", {}, [&](std::int64_t e, std::int64_t row, std::int64_t) {
    return whole[static_cast<std::size_t>(e * 2 + row / rows)];
  });
  file("e.gate_up_proj", shared, {experts, 1, 1});
  check("e.gate_up_proj", {},
        [&](std::int64_t e, std::int64_t, std::int64_t) { return shared[static_cast<std::size_t>(e)]; });
  // Of gate and up of which expert, such a list does not say.
  for (const std::vector<std::int64_t>& mixed : {std::vector<std::int64_t>{2 * experts}, {2, experts}}) {
    file("e.gate_up_proj", whole, mixed);
    EXPECT_NE(refusal("e.gate_up_proj", {}).find("where [3, 2, 1] of F32"), std::string::npos);
  }
  file("e.down_proj", shared, {experts});
  check("e.down_proj", {},
        [&](std::int64_t e, std::int64_t, std::int64_t) { return shared[static_cast<std::size_t>(e)]; });
}

}  // namespace
}  // namespace orthant::source_floats_test
