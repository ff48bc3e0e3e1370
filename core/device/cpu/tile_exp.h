// e^x and tanh of vectors.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/device/cpu/tile.h"

namespace orthant::tile {

// e^x where x is below 80, to about 3e-7 relative; 0 below -87.7, denormal numbers before, NaN for NaN. As
// vector_math.h has it for single numbers: x = n ln 2 + r, |r| <= ln 2 / 2, and the Taylor polynomial of e^r.
[[gnu::always_inline]] inline Vector exp_below(const Vector& x) {
  constexpr float magic = 12582912.0f, lowest = -88.0f;  // 1.5 * 2^23; at the lowest n is -127, and 2^n becomes 0
  const Vector least = lowest - Vector{}, clamped = least > x ? least : x;
  const Vector shifted = clamped * 1.44269504088896341f + magic;
  const Vector n = shifted - magic;
  const Vector r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  Vector p = r * (1.0f / 720) + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  Lanes bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + (127 - 0x4B400000)) << 23;
  Vector power;
  std::memcpy(&power, &bits, sizeof power);
  return p * power;
}

// To about 3e-7 relative, NaN for NaN. As vector_math.h has it.
[[gnu::always_inline]] inline Vector tanh_of(const Vector& x) {
  const Vector most = 20.0f - Vector{};  // where it is 1 already
  const Vector cut = x > most ? most : -most > x ? -most : x, s = x * x;
  Vector p = s * (62.0f / 2835) - 17.0f / 315;
  p = p * s + 2.0f / 15;
  p = p * s - 1.0f / 3;
  const Vector far = 1.0f - 2.0f / (1.0f + exp_below(2.0f * cut));
  return s < 0.0625f - Vector{} ? x + x * s * p : far;
}

}  // namespace orthant::tile
