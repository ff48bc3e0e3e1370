// Whether two series of measurements differ, noise considered.
//
// Thread safety: pure functions; the same numbers and options give the same bits.
#pragma once

#include <span>
#include <string_view>

#include "bench/fit/interval.h"

namespace orthant {

enum class Verdict {
  lower,          // the interval of the ratio lies below 1
  higher,         // above 1
  none_shown,     // 1 lies inside
  noise_unknown,  // too few measurements to tell
};
std::string_view name_of(Verdict verdict);

struct TwoSamples {
  double before = 0, after = 0;
  double ratio = 1;   // after / before
  Interval interval;  // of the ratio
  Verdict verdict = Verdict::noise_unknown;
};

// From a ratio and draws of it. Without draws the noise is unknown.
TwoSamples judge(double before, double after, std::span<const double> ratios, const BootstrapOptions& options,
                 double degrees_of_freedom);

// Medians of series in the order of time. Neighbours are alike (a machine is busy for a while), so blocks of sqrt(n)
// neighbours are drawn, around the end (Politis and Romano, "A circular block-resampling procedure", 1992). Fewer than
// five numbers on a side: noise unknown. REQUIRES: neither is empty; numbers above 0.
TwoSamples compare_medians(std::span<const double> before, std::span<const double> after,
                           const BootstrapOptions& options);

// Geometric means, likewise. `paired`: number i of both was measured on the same thing, such as one batch; they are
// drawn together. REQUIRES: as above, and equal lengths where paired.
TwoSamples compare_means(std::span<const double> before, std::span<const double> after, bool paired,
                         const BootstrapOptions& options);

}  // namespace orthant
