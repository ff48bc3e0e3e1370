// How many choices of a group one expert takes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include <orthant/ops.h>

namespace orthant {

// max(1, ceil(factor * K * valid / E)) of a group with `valid` tokens that are not padding (K = 1 where the experts
// choose: the factor then is the mean number of experts of a token); no limit when dropless (factor 0). Exact: the
// factor is taken as a whole number of millionths, so that 1.1 means 11/10 and not the double next to it, which would
// round a capacity of 11 up to 12.
inline std::int64_t capacity(const GateConfig& config, std::int64_t valid) {
  if (config.capacity_factor <= 0) {
    return std::numeric_limits<std::int64_t>::max();
  }
  const std::int64_t million = 1'000'000;
  // From a factor of E on every token has a seat: twice that is cut off before the product below could overflow.
  const double factor = std::min(config.capacity_factor, 2.0 * static_cast<double>(config.experts));
  const std::int64_t millionths = std::llround(factor * static_cast<double>(million));
  const std::int64_t divisor = config.experts * million;
  const std::int64_t choices = config.router == RouterKind::expert_choice ? 1 : config.top_k;
  return std::max<std::int64_t>(1, (millionths * choices * valid + divisor - 1) / divisor);
}

}  // namespace orthant
