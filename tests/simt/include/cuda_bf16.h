// Stands in for the CUDA Toolkit's header of this name: the types and conversions, no arithmetic on them.
#pragma once

#include <bit>
#include <cstdint>

#include "tests/simt/device_functions.h"

struct __nv_bfloat16 {
  __nv_bfloat16() = default;
  // Round to nearest, ties to even; NaN becomes 0x7FFF, as on the device.
  __nv_bfloat16(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const bool nan = (u & 0x7FFFFFFFu) > 0x7F800000u;
    bits = static_cast<std::uint16_t>(nan ? 0x7FFFu : (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
  }
  operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

  std::uint16_t bits;
};

struct alignas(4) __nv_bfloat162 {
  __nv_bfloat162() = default;
  __nv_bfloat162(__nv_bfloat16 x_, __nv_bfloat16 y_) : x(x_), y(y_) {}
  __nv_bfloat16 x, y;
};

inline float __bfloat162float(__nv_bfloat16 a) {
  return a;
}
inline __nv_bfloat16 __float2bfloat16_rn(float a) {
  return a;
}
inline __nv_bfloat16 __float2bfloat16(float a) {
  return a;
}
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) {
  return {a, b};
}
inline __nv_bfloat162 __float22bfloat162_rn(float2 a) {
  return {a.x, a.y};
}
inline float2 __bfloat1622float2(__nv_bfloat162 a) {
  return {a.x, a.y};
}
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) {
  return {a, b};
}
inline float __low2float(__nv_bfloat162 a) {
  return a.x;
}
inline float __high2float(__nv_bfloat162 a) {
  return a.y;
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 a) {
  return a.bits;
}
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short a) {
  __nv_bfloat16 result;
  result.bits = a;
  return result;
}
