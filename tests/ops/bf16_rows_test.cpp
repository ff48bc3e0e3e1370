// A row rounded to bf16 has the bits of its elements rounded one by one, whatever instruction does it.
#include "core/device/cpu/bf16_rows.h"

#include <gtest/gtest.h>

#include <bit>
#include <vector>

namespace orthant::test::bf16_rows_test {

TEST(RoundRow, HasTheBitsOfEachElementRounded) {
  // Every exponent, denormal numbers, infinity and NaN among them, with fractions on both sides of a tie and on it.
  std::vector<float> row;
  for (std::uint32_t upper = 0; upper < 0x10000u; ++upper) {
    for (const std::uint32_t lower : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      row.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  std::vector<BFloat16> rounded(row.size());
  round_row(rounded.data(), row.data(), static_cast<std::int64_t>(row.size()));
  for (std::size_t i = 0; i < row.size(); ++i) {
    ASSERT_EQ(rounded[i].bits, to_bf16(row[i]).bits) << std::hex << std::bit_cast<std::uint32_t>(row[i]);
  }
}

TEST(RoundRow, WritesOnlyItsElements) {
  const std::vector<float> row(100, 1.5f);
  for (std::int64_t n = 0; n < 70; ++n) {
    std::vector<BFloat16> rounded(100, BFloat16{0x1234});
    round_row(rounded.data(), row.data(), n);
    for (std::int64_t i = 0; i < 100; ++i) {
      ASSERT_EQ(rounded[static_cast<std::size_t>(i)].bits, i < n ? 0x3FC0 : 0x1234) << n << " elements, at " << i;
    }
  }
}

// Rows of several pieces.
TEST(InPieces, MakesTheWholeRow) {
  for (const std::int64_t n : {1, 255, 256, 257, 1000}) {
    std::vector<BFloat16> up(static_cast<std::size_t>(n)), down(up);
    std::int64_t next = 0;
    in_pieces(std::array{up.data(), down.data()}, n, [&](const auto& out, std::int64_t at, std::int64_t count) {
      EXPECT_EQ(at, next);
      next = at + count;
      for (std::int64_t i = 0; i < count; ++i) {
        out[0][i] = static_cast<float>((at + i) % 100);
        out[1][i] = -out[0][i];
      }
    });
    EXPECT_EQ(next, n);
    for (std::int64_t i = 0; i < n; ++i) {
      const auto at = static_cast<std::size_t>(i);
      ASSERT_EQ(to_float(up[at]), static_cast<float>(i % 100)) << i << " of " << n;
      ASSERT_EQ(to_float(down[at]), -static_cast<float>(i % 100)) << i << " of " << n;
    }
  }
}

}  // namespace orthant::test::bf16_rows_test
