#include "bench/fit/routed_law.h"

#include <orthant/error.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "bench/fit/separable.h"

namespace orthant {
namespace {

constexpr double ln10 = 2.302585092994046;

double most_experts(std::span<const FinalLoss> runs) {
  double most = 1;
  for (const FinalLoss& run : runs) {
    most = std::max(most, run.experts);
  }
  return most;
}

std::vector<double> even(double low, double high, int steps) {
  std::vector<double> axis;
  for (int i = 0; i <= steps; ++i) {
    axis.push_back(low + (high - low) * i / steps);
  }
  return axis;
}

double mean_log_parameters(std::span<const FinalLoss> runs) {
  double sum = 0;
  for (const FinalLoss& run : runs) {
    sum += std::log10(run.parameters);
  }
  return sum / static_cast<double>(runs.size());
}

// theta = ln E_start, ln E_max. Beyond 100 times the most experts E_max changes nothing that could be measured.
SeparableProblem problem_of(std::span<const FinalLoss> runs) {
  SeparableProblem problem;
  const double most = most_experts(runs), center = mean_log_parameters(runs);
  problem.columns = 4;
  problem.axes = {even(std::log(0.25), std::log(std::max(8.0, 0.25 * most)), 24),
                  even(std::log(0.25 * most), std::log(100 * most), 24)};
  std::vector<double> log_n;
  for (const FinalLoss& run : runs) {
    problem.values.push_back(std::log10(run.loss));
    problem.points.push_back(run.point);
    log_n.push_back(std::log10(run.parameters) - center);
  }
  problem.design = [runs = std::vector<FinalLoss>(runs.begin(), runs.end()), log_n = std::move(log_n)](
                       std::span<const double> theta, std::span<double> design) {
    const RoutedLaw shape{0, 0, 0, 0, std::exp(theta[0]), std::exp(theta[1])};
    if (shape.e_start > 0.9 * shape.e_max) {
      return false;
    }
    const std::size_t rows = runs.size();
    double experts = -1, log_e = 0;
    for (std::size_t i = 0; i < rows; ++i) {
      if (runs[i].experts != experts) {
        experts = runs[i].experts;
        log_e = std::log10(shape.saturated(experts));
      }
      design[i] = 1;
      design[rows + i] = log_n[i];
      design[2 * rows + i] = log_e;
      design[3 * rows + i] = log_n[i] * log_e;
    }
    return true;
  };
  return problem;
}

// From theta and the coefficients of the columns, where log10 N is counted from `center`.
RoutedLaw law_of(std::span<const double> theta, std::span<const double> c, double center) {
  return {c[1], c[2] - c[3] * center, c[3], c[0] - c[1] * center, std::exp(theta[0]), std::exp(theta[1])};
}

std::vector<LeftOutSize> leave_one_out(std::span<const FinalLoss> runs) {
  std::vector<LeftOutSize> result;
  std::set<std::string> sizes;
  for (const FinalLoss& run : runs) {
    sizes.insert(run.size);
  }
  for (const std::string& size : sizes) {
    std::vector<FinalLoss> rest;
    for (const FinalLoss& run : runs) {
      if (run.size != size) {
        rest.push_back(run);
      }
    }
    if (!routed_law_needs(rest).empty()) {
      continue;
    }
    const SeparableProblem problem = problem_of(rest);
    if (!determined(problem)) {
      continue;
    }
    const SeparableFit fit = fit_separable(problem);
    const RoutedLaw law = law_of(fit.theta, fit.coefficients, mean_log_parameters(rest));
    double square = 0, count = 0;
    for (const FinalLoss& run : runs) {
      if (run.size == size) {
        const double error = std::log(run.loss / law.loss(run.parameters, run.experts));
        square += error * error;
        ++count;
      }
    }
    result.push_back({size, std::sqrt(square / count)});
  }
  return result;
}

}  // namespace

double RoutedLaw::saturated(double experts) const {
  return 1 / (1 / (experts - 1 + 1 / (1 / e_start - 1 / e_max)) + 1 / e_max);
}

double RoutedLaw::loss(double parameters, double experts) const {
  const double n = std::log10(parameters), e = std::log10(saturated(experts));
  return std::pow(10.0, a * n + b * e + c * n * e + d);
}

double RoutedLaw::effective_parameters(double parameters, double experts) const {
  const double n = std::log10(parameters), e = std::log10(saturated(experts)), dense = std::log10(saturated(1));
  const double slope = a + c * dense;
  if (!(slope < 0)) {  // dense models do not improve with their size
    return std::numeric_limits<double>::infinity();
  }
  return std::pow(10.0, (a * n + b * e + c * n * e - b * dense) / slope);
}

std::string routed_law_needs(std::span<const FinalLoss> runs) {
  std::set<double> sizes, experts;
  for (const FinalLoss& run : runs) {
    sizes.insert(run.parameters);
    experts.insert(run.experts);
  }
  if (sizes.size() < 2) {
    return fmt::format("it needs losses of two sizes or more, found {}", sizes.size());
  }
  if (experts.size() < 4) {
    return fmt::format("it needs four expert counts or more (the dense twin is one), found {}", experts.size());
  }
  if (runs.size() < 8) {
    return fmt::format("its six coefficients need eight runs or more, found {}", runs.size());
  }
  // Rounding alone would pass for a law.
  const auto [least, most] = std::minmax_element(
      runs.begin(), runs.end(), [](const FinalLoss& a, const FinalLoss& b) { return a.loss < b.loss; });
  if (most->loss - least->loss <= 1e-9 * most->loss) {
    return fmt::format("all losses are {:g}: they say nothing of sizes and experts", most->loss);
  }
  return "";
}

RoutedLawFit fit_routed_law(std::span<const FinalLoss> runs, const BootstrapOptions& options) {
  const std::string needs = routed_law_needs(runs);
  require(needs.empty(), "the routed law cannot be fitted: {}", needs);
  for (const FinalLoss& run : runs) {
    require(std::isfinite(run.loss) && run.loss > 0 && run.parameters > 0 && run.experts >= 1,
            "the routed law: expected a finite loss and parameters above 0, and experts of 1 or more; found loss {}, "
            "parameters {}, experts {} (size {})",
            run.loss, run.parameters, run.experts, run.size);
  }
  const SeparableProblem problem = problem_of(runs);
  const double center = mean_log_parameters(runs);
  const SeparableFit fit = fit_separable(problem);
  const Resamples resamples = resample(problem, fit, options);
  RoutedLawFit result;
  result.law = law_of(fit.theta, fit.coefficients, center);
  result.residual_rms = ln10 * fit.rms;
  result.runs = runs.size();
  result.degrees_of_freedom = static_cast<double>(runs.size() - 6);
  for (std::size_t i = 0; i < resamples.count(); ++i) {
    const auto draw = resamples.draw(i);
    result.draws.push_back(law_of(draw.first(2), draw.subspan(2), center));
  }
  for (std::size_t k = 0; k < 4; ++k) {
    result.intervals[k] = interval_of(result, options, [k](const RoutedLaw& law) { return law.values()[k]; });
  }
  for (std::size_t axis = 0; axis < 2; ++axis) {
    Interval interval =
        percentile_interval(resamples.theta_or_infinite(problem, axis), options.confidence, result.degrees_of_freedom);
    for (auto* side : {&interval.low, &interval.high}) {
      *side = side->has_value() ? std::optional(std::exp(**side)) : std::nullopt;
    }
    result.intervals[4 + axis] = interval;
  }
  result.left_out = leave_one_out(runs);
  return result;
}

}  // namespace orthant
