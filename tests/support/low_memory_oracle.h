// Rounding by chance in fp64: to bf16, and to the 8-bit codes of optimizer states (orthant/state_code.h).
#pragma once

#include <orthant/ops.h>
#include <orthant/random.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace orthant::test::low_memory {

// Where `random` sends x, which lies between these two.
inline double chosen(double low, double high, double x, std::uint32_t random) {
  if (low == high) {
    return low;
  }
  return static_cast<double>(random) / 4294967296.0 < (x - low) / (high - low) ? high : low;
}

inline std::uint64_t index_of(const SliceMap& at, std::int64_t row, std::int64_t column) {
  return static_cast<std::uint64_t>((at.row_begin + row) * at.global_columns + at.column_begin + column);
}

// The number of bf16 that lies next to x towards 0; x is in f32.
inline double bf16_below(double x) {
  int exponent = 0;
  std::frexp(x, &exponent);  // |x| in [2^(exponent - 1), 2^exponent)
  const double step = std::ldexp(1.0, std::max(exponent - 8, -133));
  return std::trunc(x / step) * step;
}

inline double bf16_by_chance(double x, std::uint32_t random) {
  if (!std::isfinite(x) || x == 0) {
    return x;
  }
  const double low = bf16_below(x);
  int exponent = 0;
  std::frexp(x, &exponent);
  const double high = low == x ? x : low + std::copysign(std::ldexp(1.0, std::max(exponent - 8, -133)), x);
  return chosen(low, high, x, random & 0xFFFF0000u);  // 16 bits are what bf16 drops
}

// The number that a code stands for in a block whose byte is `exponent`.
inline double value_of(StateCode how, std::uint8_t code, std::uint8_t exponent) {
  const bool sign = how == StateCode::with_sign;
  const int bits = sign ? code & 127 : code, field = bits / 8, mantissa = bits % 8;
  const int unit = std::max(exponent - 127 - (sign ? 17 : 33), -149);
  const double size = field == 0 ? std::ldexp(mantissa, unit) : std::ldexp(8 + mantissa, unit + field - 1);
  return sign && code > 127 ? -size : size;
}

// The smallest exponent whose largest number is at least the block's.
inline int exponent_of(double most) {
  int k = -127;
  while (k < 127 && std::ldexp(1.875, k) < most) {
    ++k;
  }
  return k + 127;
}

inline double by_chance(StateCode how, double x, std::uint8_t exponent, std::uint32_t random) {
  if (how == StateCode::positive && !(x > 0)) {
    return 0;
  }
  const int codes = how == StateCode::with_sign ? 128 : 256;
  double low = 0, high = std::numeric_limits<double>::infinity();
  for (int code = 0; code < codes; ++code) {
    const double v = value_of(how, static_cast<std::uint8_t>(code), exponent);
    low = v <= std::abs(x) ? v : low;
    high = v >= std::abs(x) ? std::min(high, v) : high;
  }
  const double size = std::isinf(high) ? low : chosen(low, high, std::abs(x), random);
  const double least = value_of(how, 1, exponent);
  return how == StateCode::positive && size == 0 ? least : std::copysign(size, x);
}

}  // namespace orthant::test::low_memory
