// The frequency of a rotary pair (Su et al., "RoFormer"), for the host and for kernels.
#pragma once

#include <orthant/ops.h>
#include <orthant/random.h>

#include <cmath>

namespace orthant {

// Radians of one position for pair `pair` of `pairs`: theta^(-pair / pairs), slowed down as RotaryScaling says.
// REQUIRES: at most most_divided_pairs where frequencies have divisors.
ORTHANT_HOST_DEVICE inline double rotary_frequency(std::int64_t pair, std::int64_t pairs, double theta,
                                                   const RotaryScaling& scaling) {
  const double own = pow(theta, -static_cast<double>(pair) / static_cast<double>(pairs));
  const double share = scaling.at_zero + scaling.by_frequency * own + scaling.by_pair * static_cast<double>(pair);
  const double kept = share < 0 ? 0 : share > 1 ? 1 : share;
  const double slowed = own * (kept + (1 - kept) / scaling.factor);
  return scaling.divided ? slowed / static_cast<double>(scaling.divisor[pair]) : slowed;
}

// The channels of a head that are rotated, in pairs.
ORTHANT_HOST_DEVICE inline std::int64_t rotary_pairs(const RotaryShape& shape) {
  return (shape.head_dim - shape.plain) / 2;
}

// The first channel of a head that is rotated, and the first that is not.
ORTHANT_HOST_DEVICE inline std::int64_t first_rotated(const RotaryShape& shape) {
  return shape.plain_last ? 0 : shape.plain;
}
ORTHANT_HOST_DEVICE inline std::int64_t first_plain(const RotaryShape& shape) {
  return shape.plain_last ? shape.head_dim - shape.plain : 0;
}

}  // namespace orthant
