// How many choices of a group one expert takes, and who comes first.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <orthant/ops.h>

namespace orthant {

// The seats of an expert in a group as a function of the group's valid tokens, in whole numbers: for any device.
struct SeatRule {
  std::int64_t per_token = 0;  // millionths of a seat, times E; 0: no limit
  std::int64_t divisor = 1;

  ORTHANT_HOST_DEVICE std::int64_t seats(std::int64_t valid) const {
    if (per_token == 0) {
      return std::int64_t{1} << 62;
    }
    const std::int64_t even = (per_token * valid + divisor - 1) / divisor;
    return even < 1 ? 1 : even;
  }
};

// max(1, ceil(factor * K * valid / E)) of a group with `valid` tokens that are not padding (K = 1 where the experts
// choose: the factor then is the mean number of experts of a token); no limit when dropless (factor 0). Exact: the
// factor is taken as a whole number of millionths, so that 1.1 means 11/10 and not the double next to it, which would
// round a capacity of 11 up to 12. A factor that rounds to no millionth is one.
inline SeatRule seat_rule(const GateConfig& config) {
  if (config.capacity_factor <= 0) {
    return {};
  }
  const std::int64_t million = 1'000'000;
  // From a factor of E on every token has a seat: twice that is cut off before products could overflow.
  const double factor = std::min(config.capacity_factor, 2.0 * static_cast<double>(config.experts));
  const std::int64_t millionths = std::max<std::int64_t>(1, std::llround(factor * static_cast<double>(million)));
  return {.per_token = millionths * (config.experts_choose ? 1 : config.top_k), .divisor = config.experts * million};
}

inline std::int64_t capacity(const GateConfig& config, std::int64_t valid) {
  return seat_rule(config).seats(valid);
}

// Whether choices can lose their seats: what an expert chose itself has one.
inline bool may_drop(const GateConfig& config) {
  return config.capacity_factor > 0 && !config.experts_choose;
}

// Among the choices of a group for one expert the greater priority is seated first, ties in the order of t * K + k. See
// Stream::dispatch_plan. A weight that is not above 0 (or NaN) counts as 0; the bits of the others rise with them.
ORTHANT_HOST_DEVICE inline std::uint32_t seat_priority(const GateConfig& config, std::int64_t k, float weight) {
  if (config.drop_policy == DropPolicy::position) {
    return static_cast<std::uint32_t>(config.top_k - 1 - k);
  }
  const std::uint32_t first = config.first_choices_first && k == 0 ? 0x80000000u : 0u;
#if defined(__CUDA_ARCH__)
  const std::uint32_t bits = __float_as_uint(weight);
#else
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(weight);
#endif
  return first | (weight > 0 ? bits : 0u);
}

}  // namespace orthant
