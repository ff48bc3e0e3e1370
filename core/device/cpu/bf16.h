// bf16: the upper half of an fp32. Kernels load it, compute in fp32, and round once when they store.
#pragma once

#include <orthant/tensor.h>

#include <bit>
#include <cstdint>

namespace orthant {

struct BFloat16 {
  std::uint16_t bits;
};

inline float to_float(float x) {
  return x;
}
inline float to_float(BFloat16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

// Round to nearest, ties to even; a NaN stays a (quiet) NaN.
inline BFloat16 to_bf16(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
  const std::uint32_t nan = (u >> 16) | 0x40u;
  return {static_cast<std::uint16_t>((u & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded)};
}

template <class T>
T from_float(float x);
template <>
inline float from_float<float>(float x) {
  return x;
}
template <>
inline BFloat16 from_float<BFloat16>(float x) {
  return to_bf16(x);
}

// Calls fn with a value of the element type of an f32 or bf16 tensor. REQUIRES: the dtype has been checked.
template <class F>
void with_float_type(DType dtype, F&& fn) {
  if (dtype == DType::bf16) {
    fn(BFloat16{});
  } else {
    fn(float{});
  }
}

}  // namespace orthant
