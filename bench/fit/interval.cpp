#include "bench/fit/interval.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace orthant {
namespace {

double normal_share(double z) {
  return 0.5 * std::erfc(-z / std::sqrt(2.0));
}

// The quantile of Student's t from the normal one (Abramowitz and Stegun, 26.7.5).
double student_quantile(double z, double nu) {
  const double z3 = z * z * z, z5 = z3 * z * z, z7 = z5 * z * z;
  return z + (z3 + z) / (4 * nu) + (5 * z5 + 16 * z3 + 3 * z) / (96 * nu * nu) +
         (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * nu * nu * nu);
}

std::optional<double> closed(double value) {
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

}  // namespace

double quantile(std::span<const double> sorted, double share) {
  const double at = std::clamp(share, 0.0, 1.0) * static_cast<double>(sorted.size() - 1);
  const std::size_t below = std::min(static_cast<std::size_t>(at), sorted.size() - 1);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double part = at - static_cast<double>(below);
  // Without arithmetic where both are one infinity.
  return part == 0 || sorted[below] == sorted[above] ? sorted[below]
                                                     : sorted[below] * (1 - part) + sorted[above] * part;
}

double normal_quantile(double share) {
  double low = -40, high = 40;
  for (int i = 0; i < 100; ++i) {
    const double middle = 0.5 * (low + high);
    (normal_share(middle) < share ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

double tail_share(double confidence, double degrees_of_freedom) {
  const double z = normal_quantile(0.5 * (1 + confidence));
  return normal_share(-student_quantile(z, std::max(2.0, degrees_of_freedom)));
}

Interval percentile_interval(std::span<const double> draws, double confidence, double degrees_of_freedom) {
  std::vector<double> sorted;
  for (const double draw : draws) {
    if (!std::isnan(draw)) {
      sorted.push_back(draw);
    }
  }
  if (sorted.empty()) {
    return {};
  }
  std::sort(sorted.begin(), sorted.end());
  const double tail = tail_share(confidence, degrees_of_freedom);
  return {closed(quantile(sorted, tail)), closed(quantile(sorted, 1 - tail))};
}

}  // namespace orthant
