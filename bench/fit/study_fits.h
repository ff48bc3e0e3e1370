// All fits of one study: from points to laws, speed-ups and effective parameter counts (README.md).
//
// Thread safety: pure functions; the same points and options give the same bits.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/fit/interval.h"
#include "bench/fit/routed_law.h"
#include "bench/fit/speed_up.h"

namespace orthant {

// One finished run. Runs that differ in `seed` alone are one point: they agree in size, variant and experts.
struct StudyPoint {
  std::string id;
  std::string size;  // its name
  // What else was varied, as text: top-k, capacity factor, granularity. A law is fitted for each variant, together with
  // the dense twins, which belong to all. Runs that must not be fitted together (other layouts of one point) stay away.
  std::string variant;
  double parameters = 0;  // N: those that one token sees, of the dense twin of this size
  double experts = 1;     // E; 1 is the dense twin
  std::uint64_t seed = 0;
  double tokens = 0;              // trained on
  std::vector<CurvePoint> curve;  // validation losses, ascending steps; the last is the final one
  double seconds_per_step = 0;    // 0: not known
};

struct FitOptions {
  BootstrapOptions bootstrap;
};

struct Coefficient {
  std::string name;
  double value = 0;
  Interval interval;
};

struct Predicted {
  std::string id;
  double loss = 0;
};

// A law's losses of one size between its fewest and its most experts, close enough together to be drawn as a curve.
struct LawCurve {
  std::string size;
  std::vector<std::pair<double, double>> points;  // experts, loss
};

struct FittedLaw {
  std::string name, formula;
  std::vector<Coefficient> coefficients;
  double residual_rms = 0;  // of ln loss
  std::size_t runs = 0;
  std::vector<LeftOutSize> leave_one_size_out;  // where the rest can be fitted
  std::vector<Predicted> predicted;             // of each run that was fitted
  std::vector<LawCurve> curves = {};            // of a law of experts
};

struct PointSpeedUp {
  std::string id, twin;  // of the first seed of each
  SpeedUp speed_up;
};

struct EffectiveParameters {
  std::string id;  // of the point's first seed
  double value = 0;
  Interval interval;
};

// A law that was left out, and why.
struct Skipped {
  std::string name, why;
};

struct Fits {
  std::vector<FittedLaw> laws;
  std::vector<PointSpeedUp> speed_ups;
  std::vector<EffectiveParameters> effective_parameters;
  std::vector<Skipped> skipped;
};

// What cannot be fitted is in `skipped`; a small grid is no error.
// Errors: Error for a point without curve, for a loss that is not finite and above 0, for N that is not above 0, and
// for two points of one id.
Fits fit_study(std::span<const StudyPoint> points, const FitOptions& options);

// The text of fits.json. Sides that are open, and values that are not finite, are null:
//   {"laws": [{"name", "formula", "coefficients": [{"name", "value", "low", "high"}], "residual_rms", "points",
//              "leave_one_size_out": [{"size", "rms_log_error"}], "predicted": [{"id", "loss"}],
//              "curves": [{"size", "points": [[experts, loss], ...]}]}],
//    "speed_up": [{"id", "twin", "steps", "steps_low", "steps_high", "seconds", "seconds_low", "seconds_high",
//                  "reached_step", "twin_steps", "target_loss", "resampled"}],
//    "effective_parameters": [{"id", "value", "low", "high"}],
//    "skipped": [{"name", "why"}]}
std::string to_json(const Fits& fits);

}  // namespace orthant
