// The types that are only stored: i8, f8_e4m3, f8_e5m2 (DType). Conversions for the host and for kernels, the same bits
// in both. Source: Open Compute Project, "OCP 8-bit Floating Point Specification (OFP8)", revision 1.0 (2023).
#pragma once

#include <orthant/random.h>
#include <orthant/tensor.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace orthant {

// How a byte is divided: a sign, the exponent, `mantissa_bits` of mantissa. `largest`: the bits of the largest number.
struct E4M3 {
  static constexpr int mantissa_bits = 3, bias = 7;
  static constexpr std::uint32_t largest = 0x7E, nan = 0x7F;
  static constexpr bool has_infinity = false;
};
struct E5M2 {
  static constexpr int mantissa_bits = 2, bias = 15;
  static constexpr std::uint32_t largest = 0x7B, nan = 0x7E;
  static constexpr bool has_infinity = true;
};
template <class Format>
struct Float8 {
  std::uint8_t bits;
};
using Float8E4M3 = Float8<E4M3>;
using Float8E5M2 = Float8<E5M2>;

ORTHANT_HOST_DEVICE inline float float_of_bits(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
ORTHANT_HOST_DEVICE inline std::uint32_t bits_of_float(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

// Exact.
ORTHANT_HOST_DEVICE inline float widened(std::int8_t x) {
  return x;
}
template <class Format>
ORTHANT_HOST_DEVICE inline float widened(Float8<Format> x) {
  constexpr int m = Format::mantissa_bits;
  const std::uint32_t sign = std::uint32_t{x.bits} >> 7 << 31, rest = x.bits & 0x7Fu;
  if (rest > Format::largest) {
    const bool infinite = Format::has_infinity && rest == Format::largest + 1;
    return float_of_bits(sign | (infinite ? 0x7F800000u : 0x7FC00000u));
  }
  if (rest >> m == 0) {  // a multiple of the smallest number, 2^(1 - bias - m)
    const float unit = float_of_bits(static_cast<std::uint32_t>(128 - Format::bias - m) << 23);
    return float_of_bits(sign | bits_of_float(static_cast<float>(rest) * unit));
  }
  return float_of_bits(sign | ((rest << (23 - m)) + (static_cast<std::uint32_t>(127 - Format::bias) << 23)));
}

template <class T>
struct Narrow;
template <>
struct Narrow<std::int8_t> {
  static constexpr float largest = 127;
  ORTHANT_HOST_DEVICE static std::int8_t of(float x) {
    const float nearest = rintf(x);
    return static_cast<std::int8_t>(x != x              ? 0
                                    : nearest > 127.0f  ? 127
                                    : nearest < -128.0f ? -128
                                                        : static_cast<int>(nearest));
  }
};
template <class Format>
struct Narrow<Float8<Format>> {
  static constexpr float largest = Format::has_infinity ? 57344.0f : 448.0f;
  ORTHANT_HOST_DEVICE static Float8<Format> of(float x) {
    constexpr int m = Format::mantissa_bits, dropped = 23 - m;
    const std::uint32_t u = bits_of_float(x), sign = u >> 31 << 7, size = u & 0x7FFFFFFFu;
    if (size > 0x7F800000u) {
      return {static_cast<std::uint8_t>(Format::nan)};
    }
    std::uint32_t bits;
    if (size < static_cast<std::uint32_t>(128 - Format::bias) << 23) {
      // Below the smallest normal number: this sum has its last bit where the result has it.
      const std::uint32_t sum = static_cast<std::uint32_t>(151 - Format::bias - m) << 23;
      bits = bits_of_float(float_of_bits(size) + float_of_bits(sum)) - sum;
    } else {
      const std::uint32_t half = (1u << (dropped - 1)) - 1 + (size >> dropped & 1u);
      bits = ((size + half) >> dropped) - (static_cast<std::uint32_t>(127 - Format::bias) << m);
    }
    return {static_cast<std::uint8_t>(sign | (bits > Format::largest ? Format::largest : bits))};
  }
};

constexpr bool is_storage_type(DType dtype) {
  return dtype == DType::i8 || dtype == DType::f8_e4m3 || dtype == DType::f8_e5m2;
}

// Calls fn with a value of the element type. REQUIRES: is_storage_type.
template <class F>
void with_storage_type(DType dtype, F&& fn) {
  if (dtype == DType::i8) {
    fn(std::int8_t{});
  } else if (dtype == DType::f8_e4m3) {
    fn(Float8E4M3{});
  } else {
    fn(Float8E5M2{});
  }
}

}  // namespace orthant
