#include "bench/fit/separable.h"

#include <orthant/error.h>

#include <algorithm>
#include <cmath>

#include "bench/fit/projection.h"

namespace orthant {
namespace {

constexpr double huber_k = 1.345;        // 95 % of the efficiency of least squares on normal residuals
constexpr double smallest_scale = 1e-7;  // no loss is known better

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return quantile(values, 0.5);
}

void model_values(const SeparableProblem& problem, std::span<const double> theta, std::span<const double> coefficients,
                  std::vector<double>& f) {
  const std::size_t rows = problem.values.size();
  std::vector<double> design(problem.columns * rows);
  problem.design(theta, design);
  f.assign(rows, 0);
  for (std::size_t j = 0; j < problem.columns; ++j) {
    for (std::size_t i = 0; i < rows; ++i) {
      f[i] += coefficients[j] * design[j * rows + i];
    }
  }
}

// What the linear solve sees: values and scales of rows, linearised around `fitted` where the residual is of
// logarithms.
struct Working {
  std::vector<double> scale, y;
};

Working working(const SeparableProblem& problem, const std::vector<double>& fitted,
                const std::vector<double>& weights) {
  const std::size_t rows = problem.values.size();
  Working w{std::vector<double>(rows), std::vector<double>(rows)};
  for (std::size_t i = 0; i < rows; ++i) {
    const double root = std::sqrt(weights[i]);
    const bool plain = problem.residual == Residual::plain;
    w.scale[i] = plain ? root : root / fitted[i];
    w.y[i] = root * (plain ? problem.values[i] : 1 + std::log(problem.values[i] / fitted[i]));
  }
  return w;
}

// h of the row in the tangent plane of the whole model; coefficients on an edge are not free.
std::vector<double> leverages(const SeparableProblem& problem, const SeparableFit& fit) {
  const std::size_t rows = problem.values.size();
  std::vector<double> tangent(problem.columns * rows);
  problem.design(fit.theta, tangent);
  std::vector<double> moved;
  for (std::size_t a = 0; a < fit.theta.size(); ++a) {
    const auto& axis = problem.axes[a];
    if (fit.theta[a] <= axis.front() || fit.theta[a] >= axis.back()) {
      continue;
    }
    const double h = 1e-6 * (axis.back() - axis.front());
    std::vector<double> near = fit.theta;
    near[a] += near[a] + h <= axis.back() ? h : -h;
    model_values(problem, near, fit.coefficients, moved);
    for (std::size_t i = 0; i < rows; ++i) {
      tangent.push_back((moved[i] - fit.fitted[i]) / (near[a] - fit.theta[a]));
    }
  }
  std::vector<double> result(rows, 0);
  std::vector<double> kept;  // orthonormal
  const double unit_rows = problem.residual == Residual::plain ? 0 : 1;
  for (std::size_t j = 0; j * rows < tangent.size(); ++j) {
    std::vector<double> column(tangent.begin() + static_cast<std::ptrdiff_t>(j * rows),
                               tangent.begin() + static_cast<std::ptrdiff_t>((j + 1) * rows));
    for (std::size_t i = 0; i < rows; ++i) {
      column[i] *= std::sqrt(fit.weights[i]) / (unit_rows == 0 ? 1 : fit.fitted[i]);
    }
    const double before = std::sqrt(dot(column, column));
    for (std::size_t k = 0; k * rows < kept.size(); ++k) {
      const auto earlier = std::span(kept).subspan(k * rows, rows);
      const double part = dot(earlier, column);
      for (std::size_t i = 0; i < rows; ++i) {
        column[i] -= part * earlier[i];
      }
    }
    const double length = std::sqrt(dot(column, column));
    if (!(length > 1e-7 * before)) {
      continue;
    }
    for (std::size_t i = 0; i < rows; ++i) {
      column[i] /= length;
      result[i] += column[i] * column[i];
    }
    kept.insert(kept.end(), column.begin(), column.end());
  }
  return result;
}

}  // namespace

bool determined(const SeparableProblem& problem) {
  const std::size_t rows = problem.values.size();
  return rows > problem.columns + problem.axes.size() &&
         !SearchGrid(Projector(problem, std::vector<double>(rows, 1))).empty();
}

SeparableFit fit_separable(const SeparableProblem& problem) {
  const std::size_t rows = problem.values.size(), axes = problem.axes.size();
  require(axes == 1 || axes == 2, "fit: expected one or two non-linear coefficients, found {}", axes);
  require(problem.points.size() == rows, "fit: {} rows, but points of {}", rows, problem.points.size());
  require(rows > problem.columns + axes, "fit: {} coefficients need more than {} runs", problem.columns + axes, rows);
  for (const double value : problem.values) {
    require(std::isfinite(value) && (problem.residual == Residual::plain || value > 0),
            "fit: a loss must be finite and above 0, found {}", value);
  }
  SeparableFit fit;
  fit.weights.assign(rows, 1);
  fit.fitted = problem.values;
  const double unbias = std::sqrt(static_cast<double>(rows) / static_cast<double>(rows - problem.columns - axes));
  std::vector<double> values;
  for (int round = 0; round < 60; ++round) {
    const Working w = working(problem, fit.fitted, fit.weights);
    const Projector projector(problem, w.scale);
    if (round < 3) {  // weights and the basin are found together
      const SearchGrid grid(projector);
      require(!grid.empty(),
              "fit: {} losses do not determine {} linear coefficients: do the sizes and experts vary together?", rows,
              problem.columns);
      fit.theta = grid.best(projector, w.y);
    }
    refine(projector, w.y, fit.theta);
    fit.coefficients = projector.solve(fit.theta, w.y);
    model_values(problem, fit.theta, fit.coefficients, values);
    fit.residuals.resize(rows);
    std::vector<double> sizes(rows);
    double change = 0;
    for (std::size_t i = 0; i < rows; ++i) {
      if (problem.residual == Residual::log_ratio) {
        values[i] = std::max(values[i], 0.1 * fit.fitted[i]);  // keeps logarithms finite far from the solution
      }
      fit.residuals[i] =
          problem.residual == Residual::plain ? problem.values[i] - values[i] : std::log(problem.values[i] / values[i]);
      sizes[i] = std::abs(fit.residuals[i]);
      change = std::max(change, std::abs(values[i] - fit.fitted[i]) / (std::abs(values[i]) + 1e-300));
    }
    fit.fitted.swap(values);
    fit.scale = std::max(smallest_scale, 1.4826 * median(sizes) * unbias);
    for (std::size_t i = 0; i < rows; ++i) {
      const double weight = sizes[i] <= huber_k * fit.scale ? 1 : huber_k * fit.scale / sizes[i];
      change = std::max(change, std::abs(weight - fit.weights[i]));
      fit.weights[i] = weight;
    }
    if (round >= 3 && change < 1e-8) {
      break;
    }
  }
  fit.rms = std::sqrt(dot(fit.residuals, fit.residuals) / static_cast<double>(rows));
  fit.leverage = leverages(problem, fit);
  return fit;
}

}  // namespace orthant
