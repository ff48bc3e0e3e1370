// Studies whose law is known: what the fits are tested on.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <random>
#include <string>
#include <vector>

#include "bench/fit/routed_law.h"

namespace orthant::test {

// Normal numbers, the same on every machine.
class Normal {
 public:
  explicit Normal(std::uint64_t seed) : bits_(seed) {}
  double unit() { return (static_cast<double>(bits_() >> 11) + 0.5) * 0x1p-53; }
  double operator()() {
    const double radius = std::sqrt(-2 * std::log(unit()));
    return radius * std::cos(2 * std::numbers::pi * unit());
  }

 private:
  std::mt19937_64 bits_;
};

struct Noise {
  double of_runs = 0.003;  // of ln loss, each run its own
  double of_points = 0;    // shared by the seeds of a point
  double often_worse = 0;  // share of runs with six times the noise
};

// Three sizes, 1 to 32 experts; three seeds at two points of the middle size. Each point has a number.
inline std::vector<FinalLoss> simulated_study(const RoutedLaw& law, const Noise& noise, std::uint64_t seed) {
  Normal normal(seed);
  std::vector<FinalLoss> runs;
  std::size_t point = 0;
  for (const double parameters : {1e6, 3e6, 1e7}) {
    for (const double experts : {1, 2, 4, 8, 16, 32}) {
      const double of_point = noise.of_points * normal();
      const int seeds = parameters == 3e6 && (experts == 1 || experts == 8) ? 3 : 1;
      for (int s = 0; s < seeds; ++s) {
        const double worse = normal.unit() < noise.often_worse ? 6 : 1;
        const double loss = law.loss(parameters, experts) * std::exp(of_point + worse * noise.of_runs * normal());
        runs.push_back({parameters == 1e6   ? "small"
                        : parameters == 3e6 ? "middle"
                                            : "large",
                        parameters, experts, point, loss});
      }
      ++point;
    }
  }
  return runs;
}

// The published law of S-BASE, with places of E_start and E_max that a study of 32 experts can see.
inline const RoutedLaw known_law{-0.082, -0.108, 0.009, 1.104, 1.85, 40};

}  // namespace orthant::test
