#include "bench/fit/power_law.h"

#include <orthant/error.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "bench/fit/separable.h"

namespace orthant {
namespace {

constexpr double smallest_exponent = 0.02, largest_exponent = 4;

std::vector<double> exponent_axis(int steps) {
  std::vector<double> axis;
  const double low = std::log(smallest_exponent), high = std::log(largest_exponent);
  for (int i = 0; i <= steps; ++i) {
    axis.push_back(low + (high - low) * i / steps);
  }
  return axis;
}

// Each quantity over its geometric mean, so that columns have like sizes whatever the exponent.
double geometric_mean(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) {
    sum += std::log(value);
  }
  return std::exp(sum / static_cast<double>(values.size()));
}

// E0 + sum of A_k / (x_k / mean_k)^alpha_k, theta = ln alpha.
SeparableProblem problem_of(std::vector<std::vector<double>> quantities, std::vector<double> losses,
                            std::vector<std::size_t> groups) {
  SeparableProblem problem;
  problem.columns = 1 + quantities.size();
  problem.values = std::move(losses);
  problem.points = std::move(groups);
  problem.residual = Residual::log_ratio;
  for (auto& quantity : quantities) {
    problem.axes.push_back(exponent_axis(quantities.size() == 1 ? 60 : 24));
    const double mean = geometric_mean(quantity);
    for (double& x : quantity) {
      x = std::log(x / mean);
    }
  }
  problem.design = [logs = std::move(quantities)](std::span<const double> theta, std::span<double> design) {
    const std::size_t rows = logs[0].size();
    std::fill_n(design.begin(), rows, 1.0);
    for (std::size_t k = 0; k < logs.size(); ++k) {
      const double exponent = std::exp(theta[k]);
      for (std::size_t i = 0; i < rows; ++i) {
        design[(1 + k) * rows + i] = std::exp(-exponent * logs[k][i]);
      }
    }
    return true;
  };
  return problem;
}

// Groups as 0, 1, ... in the order of their first row.
template <class Row>
std::vector<std::size_t> numbered_groups(std::span<const Row> rows) {
  std::vector<std::size_t> seen, result;
  for (const Row& row : rows) {
    const auto at = std::find(seen.begin(), seen.end(), row.group);
    result.push_back(static_cast<std::size_t>(at - seen.begin()));
    if (at == seen.end()) {
      seen.push_back(row.group);
    }
  }
  return result;
}

void require_positive(double x, double loss) {
  require(std::isfinite(x) && x > 0 && std::isfinite(loss) && loss > 0,
          "a power law: expected quantities and losses that are finite and above 0, found {} and {}", x, loss);
}

// Exponents, open at the edges of the search.
Interval exponent_interval(const SeparableProblem& problem, const Resamples& resamples, std::size_t axis,
                           double confidence, double freedom) {
  Interval interval = percentile_interval(resamples.theta_or_infinite(problem, axis), confidence, freedom);
  for (auto* side : {&interval.low, &interval.high}) {
    *side = side->has_value() ? std::optional(std::exp(**side)) : std::nullopt;
  }
  return interval;
}

Interval floor_interval(const Resamples& resamples, double confidence, double freedom) {
  std::vector<double> floors;
  for (std::size_t i = 0; i < resamples.count(); ++i) {
    const double floor = resamples.draw(i)[resamples.axes];
    floors.push_back(floor > 0 ? floor : -std::numeric_limits<double>::infinity());
  }
  return percentile_interval(floors, confidence, freedom);
}

// A_k in units of x, from the coefficient of x over its mean.
double amplitude_of(std::span<const double> draw, std::size_t axes, std::size_t k, double mean) {
  return draw[axes + 1 + k] * std::pow(mean, std::exp(draw[k]));
}

Interval amplitude_interval(const Resamples& resamples, std::size_t k, double mean, double confidence, double freedom) {
  std::vector<double> amplitudes;
  for (std::size_t i = 0; i < resamples.count(); ++i) {
    amplitudes.push_back(amplitude_of(resamples.draw(i), resamples.axes, k, mean));
  }
  return percentile_interval(amplitudes, confidence, freedom);
}

std::vector<double> whole_draw(const SeparableFit& fit) {
  std::vector<double> draw = fit.theta;
  draw.insert(draw.end(), fit.coefficients.begin(), fit.coefficients.end());
  return draw;
}

}  // namespace

double PowerLaw::loss(double x) const {
  return floor + amplitude / std::pow(x, exponent);
}

double ModelDataLaw::loss(double parameters, double tokens) const {
  return floor + model_amplitude / std::pow(parameters, model_exponent) +
         data_amplitude / std::pow(tokens, data_exponent);
}

std::string power_law_needs(std::span<const LossAt> rows) {
  std::set<double> xs;
  for (const LossAt& row : rows) {
    xs.insert(row.x);
  }
  if (xs.size() < 4 || rows.size() < 5) {
    return fmt::format("its three coefficients need five losses at four values or more, found {} at {}", rows.size(),
                       xs.size());
  }
  return "";
}

PowerLawFit fit_power_law(std::span<const LossAt> rows, const BootstrapOptions& options) {
  const std::string needs = power_law_needs(rows);
  require(needs.empty(), "the power law with floor cannot be fitted: {}", needs);
  std::vector<double> x, losses;
  for (const LossAt& row : rows) {
    require_positive(row.x, row.loss);
    x.push_back(row.x);
    losses.push_back(row.loss);
  }
  const double mean = geometric_mean(x);
  const SeparableProblem problem = problem_of({std::move(x)}, std::move(losses), numbered_groups(rows));
  const SeparableFit fit = fit_separable(problem);
  const Resamples resamples = resample(problem, fit, options);
  const double freedom = static_cast<double>(rows.size() - 3);
  PowerLawFit result;
  result.law = {fit.coefficients[0], amplitude_of(whole_draw(fit), 1, 0, mean), std::exp(fit.theta[0])};
  result.intervals = {floor_interval(resamples, options.confidence, freedom),
                      amplitude_interval(resamples, 0, mean, options.confidence, freedom),
                      exponent_interval(problem, resamples, 0, options.confidence, freedom)};
  result.residual_rms = fit.rms;
  result.rows = rows.size();
  return result;
}

std::string model_data_law_needs(std::span<const LossOfModelAndData> rows) {
  std::set<double> parameters, tokens;
  for (const LossOfModelAndData& row : rows) {
    parameters.insert(row.parameters);
    tokens.insert(row.tokens);
  }
  if (parameters.size() < 3 || tokens.size() < 3 || rows.size() < 7) {
    return fmt::format(
        "its five coefficients need seven runs of three sizes and three counts of tokens or more, found {} runs of {} "
        "sizes and {} counts of tokens",
        rows.size(), parameters.size(), tokens.size());
  }
  return "";
}

ModelDataLawFit fit_model_data_law(std::span<const LossOfModelAndData> rows, const BootstrapOptions& options) {
  const std::string needs = model_data_law_needs(rows);
  require(needs.empty(), "the law over model and data cannot be fitted: {}", needs);
  std::vector<double> parameters, tokens, losses;
  for (const LossOfModelAndData& row : rows) {
    require_positive(row.parameters, row.loss);
    require_positive(row.tokens, row.loss);
    parameters.push_back(row.parameters);
    tokens.push_back(row.tokens);
    losses.push_back(row.loss);
  }
  const double n = geometric_mean(parameters), d = geometric_mean(tokens);
  const SeparableProblem problem =
      problem_of({std::move(parameters), std::move(tokens)}, std::move(losses), numbered_groups(rows));
  const SeparableFit fit = fit_separable(problem);
  const Resamples resamples = resample(problem, fit, options);
  const double freedom = static_cast<double>(rows.size() - 5), confidence = options.confidence;
  const std::vector<double> best = whole_draw(fit);
  ModelDataLawFit result;
  result.law = {fit.coefficients[0], amplitude_of(best, 2, 0, n), std::exp(fit.theta[0]), amplitude_of(best, 2, 1, d),
                std::exp(fit.theta[1])};
  result.intervals = {floor_interval(resamples, confidence, freedom),
                      amplitude_interval(resamples, 0, n, confidence, freedom),
                      exponent_interval(problem, resamples, 0, confidence, freedom),
                      amplitude_interval(resamples, 1, d, confidence, freedom),
                      exponent_interval(problem, resamples, 1, confidence, freedom)};
  result.residual_rms = fit.rms;
  result.rows = rows.size();
  return result;
}

}  // namespace orthant
