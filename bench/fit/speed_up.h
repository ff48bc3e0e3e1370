// How much sooner a routed model reaches the final loss of its dense twin (Fedus et al., "Switch Transformers", 2021,
// Figure 1), in steps and in seconds.
//
// Thread safety: pure functions.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "bench/fit/interval.h"
#include "bench/fit/monotone_curve.h"

namespace orthant {

// One run: a point of a study with one seed.
struct RunCurve {
  std::vector<CurvePoint> points;  // ascending steps; the last one is the final loss
  double seconds_per_step = 0;     // 0: not known
};

// How far the curves of single seeds lie from the mean of their point, of ln loss, over the last third of a run; scaled
// up by sqrt(n / (n - 1)) for the mean that is taken of them. Gathered over all points of a study: three seeds at two
// points say little each, and more together.
struct SeedSpread {
  std::vector<double> deviations;
  double degrees_of_freedom = 0;
  // Adds the runs of one point; one run alone adds nothing. Errors: Error for runs with different steps.
  void add(std::span<const RunCurve> seeds);
};

enum class Resampled {
  seeds,            // the seeds of both points
  seeds_elsewhere,  // one of them has a single seed: the spread of seeds is that of other points
  residuals,        // no point has several seeds: only what a smooth monotone fit takes away is drawn, so the interval
                    // says nothing of another seed
};
std::string_view name_of(Resampled resampled);

struct SpeedUp {
  double target_loss = 0;  // the twin's final loss: mean over its seeds, of logarithms
  double twin_steps = 0;
  std::optional<double> reached_step;  // of the model; none: not reached

  // twin_steps / reached_step: 2 is "in half of the steps". No value where it is not reached. `high` may have one
  // still: a model that does not reach the loss in s steps is slower than twin_steps / s. A side is open where more
  // resamples than the interval leaves out do not reach the loss (low), or reach it before the first evaluation (high).
  std::optional<double> steps;
  Interval steps_interval;

  // The same in seconds; neither value nor interval where seconds per step are not known.
  std::optional<double> seconds;
  Interval seconds_interval;

  Resampled resampled = Resampled::residuals;
};

// `spread` is that of the study, the two points included.
// Errors: Error for curves that MonotoneCurve refuses, for no curve, and for seeds of a point with different steps.
SpeedUp speed_up(std::span<const RunCurve> model, std::span<const RunCurve> twin, const SeedSpread& spread,
                 const BootstrapOptions& options);

}  // namespace orthant
