#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "bench/fit/projection.h"
#include "bench/fit/separable.h"

namespace orthant {
namespace {

// Residuals to draw from, of mean 0, and the share of their variance that seeds of one point have in common.
struct Pool {
  std::vector<double> residuals;
  double common = 0;
};

Pool make_pool(const SeparableProblem& problem, const SeparableFit& fit) {
  const std::size_t rows = problem.values.size();
  std::vector<double> clipped(rows);
  double whole = 0;
  for (std::size_t i = 0; i < rows; ++i) {
    clipped[i] = fit.weights[i] * fit.residuals[i];
    whole += fit.weights[i] == 1 ? 1 : 0;
  }
  const double up = static_cast<double>(rows) / std::max(whole, 0.5 * static_cast<double>(rows));
  Pool pool;
  for (std::size_t i = 0; i < rows; ++i) {
    pool.residuals.push_back(up * clipped[i] / (1 - std::min(fit.leverage[i], 0.8)));
  }
  const double mean = std::accumulate(pool.residuals.begin(), pool.residuals.end(), 0.0) / static_cast<double>(rows);
  double variance = 0;
  for (double& r : pool.residuals) {
    r -= mean;
    variance += r * r / static_cast<double>(rows);
  }
  double within = 0, freedom = 0;
  const std::size_t points = *std::max_element(problem.points.begin(), problem.points.end()) + 1;
  for (std::size_t p = 0; p < points; ++p) {
    double sum = 0, square = 0, runs = 0;
    for (std::size_t i = 0; i < rows; ++i) {
      if (problem.points[i] == p) {
        sum += up * clipped[i];
        square += up * up * clipped[i] * clipped[i];
        ++runs;
      }
    }
    within += runs > 1 ? square - sum * sum / runs : 0;
    freedom += runs > 1 ? runs - 1 : 0;
  }
  if (freedom >= 2 && variance > 0) {
    pool.common = std::clamp(1 - within / freedom / variance, 0.0, 1.0);
  }
  return pool;
}

}  // namespace

std::vector<double> Resamples::theta_or_infinite(const SeparableProblem& problem, std::size_t axis) const {
  std::vector<double> result;
  const auto& values_of = problem.axes[axis];
  const double near = 1e-6 * (values_of.back() - values_of.front());
  for (std::size_t i = 0; i < count(); ++i) {
    const double theta = draw(i)[axis];
    const double infinity = std::numeric_limits<double>::infinity();
    result.push_back(theta >= values_of.back() - near    ? infinity
                     : theta <= values_of.front() + near ? -infinity
                                                         : theta);
  }
  return result;
}

Resamples resample(const SeparableProblem& problem, const SeparableFit& fit, const BootstrapOptions& options) {
  const std::size_t rows = problem.values.size();
  const bool plain = problem.residual == Residual::plain;
  const Pool pool = make_pool(problem, fit);
  std::vector<double> scale(rows, 1);
  for (std::size_t i = 0; i < rows && !plain; ++i) {
    scale[i] = 1 / fit.fitted[i];
  }
  const Projector projector(problem, scale);
  const SearchGrid grid(projector);
  const std::size_t points = *std::max_element(problem.points.begin(), problem.points.end()) + 1;
  const double of_point = std::sqrt(pool.common), of_run = std::sqrt(1 - pool.common);
  Draws draws(options.seed);
  Resamples result{problem.axes.size(), problem.columns, {}};
  std::vector<double> y(rows), shared(points);
  for (int b = 0; b < options.resamples; ++b) {
    for (double& u : shared) {
      u = of_point * pool.residuals[draws.index(rows)];
    }
    for (std::size_t i = 0; i < rows; ++i) {
      const double r = shared[problem.points[i]] + of_run * pool.residuals[draws.index(rows)];
      y[i] = (plain ? fit.fitted[i] : 1) + r;
    }
    std::vector<double> theta = grid.best(projector, y);
    refine(projector, y, theta);
    const std::vector<double> coefficients = projector.solve(theta, y);
    result.values.insert(result.values.end(), theta.begin(), theta.end());
    result.values.insert(result.values.end(), coefficients.begin(), coefficients.end());
  }
  return result;
}

}  // namespace orthant
