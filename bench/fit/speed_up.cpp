#include "bench/fit/speed_up.h"

#include <orthant/error.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace orthant {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Of logarithms, over the seeds of a point.
std::vector<CurvePoint> mean_curve(std::span<const RunCurve> seeds) {
  require(!seeds.empty() && !seeds[0].points.empty(), "a speed-up: expected one run of each point or more, found none");
  std::vector<CurvePoint> mean = seeds[0].points;
  for (std::size_t i = 0; i < mean.size(); ++i) {
    double sum = 0;
    for (const RunCurve& seed : seeds) {
      require(
          seed.points.size() == mean.size() && seed.points[i].step == mean[i].step,
          "runs of one point must be evaluated at the same steps: one has {} evaluations, another {}, and they differ "
          "at evaluation {}",
          mean.size(), seed.points.size(), i + 1);
      require(seed.points[i].loss > 0, "a training curve: expected a loss above 0 at step {}, found {}", mean[i].step,
              seed.points[i].loss);
      sum += std::log(seed.points[i].loss);
    }
    mean[i].loss = std::exp(sum / static_cast<double>(seeds.size()));
  }
  return mean;
}

double seconds_per_step(std::span<const RunCurve> seeds) {
  std::vector<double> known;
  for (const RunCurve& seed : seeds) {
    if (seed.seconds_per_step > 0) {
      known.push_back(seed.seconds_per_step);
    }
  }
  std::sort(known.begin(), known.end());
  return known.empty() ? 0 : quantile(known, 0.5);
}

// One point as a source of resamples.
class Resampler {
 public:
  Resampler(std::span<const RunCurve> seeds, const SeedSpread& spread)
      : mean_(mean_curve(seeds)), curve_(mean_), seeds_(seeds.size()), spread_(spread) {}

  const MonotoneCurve& curve() const { return curve_; }
  const std::vector<CurvePoint>& mean() const { return mean_; }

  // Of the mean over seeds: what a drawn set of seeds shifts a whole curve by.
  double seed_shift(Draws& draws) const {
    double sum = 0;
    for (std::size_t s = 0; s < seeds_ && !spread_.deviations.empty(); ++s) {
      sum += spread_.deviations[draws.index(spread_.deviations.size())];
    }
    return sum / static_cast<double>(seeds_);
  }
  double residual(Draws& draws) const {
    const auto& residuals = curve_.residuals();
    return residuals.empty() ? 0 : residuals[draws.index(residuals.size())];
  }

 private:
  std::vector<CurvePoint> mean_;
  MonotoneCurve curve_;
  std::size_t seeds_;
  const SeedSpread& spread_;
};

// twin_steps / step, -infinity where the loss is not reached, +infinity where it is reached before the first
// evaluation.
double ratio(const MonotoneCurve& curve, double target, double twin_steps) {
  if (curve.begins_below(target)) {
    return infinity;
  }
  const std::optional<double> step = curve.step_where(target);
  return step ? twin_steps / *step : -infinity;
}

Interval scaled(Interval interval, double factor) {
  for (auto* side : {&interval.low, &interval.high}) {
    *side = side->has_value() ? std::optional(**side * factor) : std::nullopt;
  }
  return interval;
}

}  // namespace

std::string_view name_of(Resampled resampled) {
  switch (resampled) {
    case Resampled::seeds: return "seeds";
    case Resampled::seeds_elsewhere: return "seeds of other points";
    case Resampled::residuals: return "residuals";
  }
  return "";
}

void SeedSpread::add(std::span<const RunCurve> seeds) {
  if (seeds.size() < 2) {
    return;
  }
  const std::vector<CurvePoint> mean = mean_curve(seeds);
  const std::size_t from = mean.size() - (mean.size() + 2) / 3;
  const double n = static_cast<double>(seeds.size()), up = std::sqrt(n / (n - 1));
  for (const RunCurve& seed : seeds) {
    double sum = 0;
    for (std::size_t i = from; i < mean.size(); ++i) {
      sum += std::log(seed.points[i].loss / mean[i].loss);
    }
    deviations.push_back(up * sum / static_cast<double>(mean.size() - from));
  }
  degrees_of_freedom += n - 1;
}

SpeedUp speed_up(std::span<const RunCurve> model, std::span<const RunCurve> twin, const SeedSpread& spread,
                 const BootstrapOptions& options) {
  const Resampler routed(model, spread), dense(twin, spread);
  SpeedUp result;
  result.target_loss = dense.mean().back().loss;
  result.twin_steps = dense.mean().back().step;
  result.reached_step = routed.curve().step_where(result.target_loss);
  if (result.reached_step) {
    result.steps = result.twin_steps / *result.reached_step;
  }
  result.resampled = spread.deviations.empty()             ? Resampled::residuals
                     : model.size() > 1 && twin.size() > 1 ? Resampled::seeds
                                                           : Resampled::seeds_elsewhere;
  Draws draws(options.seed);
  std::vector<double> ratios, shift(routed.curve().smooth({}).size());
  for (int b = 0; b < options.resamples; ++b) {
    const double of_seeds = routed.seed_shift(draws);
    for (double& s : shift) {
      s = of_seeds + routed.residual(draws);
    }
    const double target = result.target_loss * std::exp(dense.seed_shift(draws) + dense.residual(draws));
    ratios.push_back(ratio(MonotoneCurve(routed.curve().smooth(shift)), target, result.twin_steps));
  }
  const double freedom =
      spread.deviations.empty() ? static_cast<double>(routed.curve().residuals().size()) : spread.degrees_of_freedom;
  const bool nothing_drawn =
      spread.deviations.empty() && (routed.curve().residuals().empty() || dense.curve().residuals().empty());
  if (!nothing_drawn) {
    // A draw that does not reach the loss bounds the ratio from above.
    const double last = routed.mean().back().step;
    std::vector<double> from_above = ratios;
    for (double& r : from_above) {
      r = r == -infinity ? result.twin_steps / last : r;
    }
    result.steps_interval = {percentile_interval(ratios, options.confidence, freedom).low,
                             percentile_interval(from_above, options.confidence, freedom).high};
  }
  const double model_seconds = seconds_per_step(model), twin_seconds = seconds_per_step(twin);
  if (model_seconds > 0 && twin_seconds > 0) {
    const double factor = twin_seconds / model_seconds;
    result.seconds = result.steps ? std::optional(*result.steps * factor) : std::nullopt;
    result.seconds_interval = scaled(result.steps_interval, factor);
  }
  return result;
}

}  // namespace orthant
