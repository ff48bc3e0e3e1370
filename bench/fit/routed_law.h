// The scaling law of routed language models (Clark et al., "Unified Scaling Laws for Routed Language Models", 2022,
// equations 1 and 10):
//
//   log10 L = a log10 N + b log10 Ê + c log10 N log10 Ê + d
//   1/Ê = 1 / (E - 1 + 1/(1/E_start - 1/E_max)) + 1/E_max
//
// L is the validation loss in nats per token, N the parameters that one token sees (of the dense twin), E the experts
// of a routed layer; a dense model has E = 1, whatever its router. Ê is about E between E_start and E_max, and
// saturates at both. The paper fits final losses, one law for each kind of router, by least squares on log10 L; we
// weigh residuals by Huber's rule.
//
// Thread safety: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "bench/fit/interval.h"

namespace orthant {

// The final loss of one run.
struct FinalLoss {
  std::string size;       // its name: left out together
  double parameters = 0;  // N
  double experts = 1;     // E
  std::size_t point = 0;  // runs of one point differ in their seed only
  double loss = 0;        // L
};

struct RoutedLaw {
  double a = 0, b = 0, c = 0, d = 0, e_start = 1, e_max = 1e30;

  double saturated(double experts) const;  // Ê
  double loss(double parameters, double experts) const;
  // The N of a dense model with the same loss. Infinite where the law gives dense models no such loss.
  double effective_parameters(double parameters, double experts) const;

  static constexpr std::array<const char*, 6> names{"a", "b", "c", "d", "E_start", "E_max"};
  std::array<double, 6> values() const { return {a, b, c, d, e_start, e_max}; }
};

// The error of a size's losses by the law of the other sizes: root mean square of ln(L / predicted).
struct LeftOutSize {
  std::string size;
  double rms_log_error = 0;
};

struct RoutedLawFit {
  RoutedLaw law;
  std::array<Interval, 6> intervals;  // in the order of RoutedLaw::names
  double residual_rms = 0;            // of ln L
  std::size_t runs = 0;
  double degrees_of_freedom = 0;
  std::vector<LeftOutSize> left_out;  // only sizes without which the rest can be fitted
  std::vector<RoutedLaw> draws;       // of the bootstrap
};

// Why the law cannot be fitted to these runs: "" where it can. It needs two sizes, four expert counts (1 among them or
// not) and eight runs.
std::string routed_law_needs(std::span<const FinalLoss> runs);

// Errors: Error with the reason of routed_law_needs; also for losses that are not finite and positive.
RoutedLawFit fit_routed_law(std::span<const FinalLoss> runs, const BootstrapOptions& options);

// Interval of a quantity of the law, from its draws.
template <class Quantity>
Interval interval_of(const RoutedLawFit& fit, const BootstrapOptions& options, Quantity quantity) {
  std::vector<double> values;
  for (const RoutedLaw& law : fit.draws) {
    values.push_back(quantity(law));
  }
  return percentile_interval(values, options.confidence, fit.degrees_of_freedom);
}

}  // namespace orthant
