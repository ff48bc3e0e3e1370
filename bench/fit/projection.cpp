#include "bench/fit/projection.h"

#include <algorithm>
#include <cmath>

namespace orthant {
namespace {

constexpr double dependent_column = 1e-10;  // of its length, left after the columns before it

void factorise(std::size_t columns, std::size_t rows, Factors& f) {
  f.r.assign(columns * columns, 0);
  f.usable = true;
  for (std::size_t j = 0; j < columns; ++j) {
    const auto column = std::span(f.q).subspan(j * rows, rows);
    const double before = std::sqrt(dot(column, column));
    for (std::size_t k = 0; k < j; ++k) {
      const auto earlier = std::span(f.q).subspan(k * rows, rows);
      const double part = dot(earlier, column);
      f.r[k * columns + j] = part;
      for (std::size_t i = 0; i < rows; ++i) {
        column[i] -= part * earlier[i];
      }
    }
    const double length = std::sqrt(dot(column, column));
    if (!(length > dependent_column * before) || !std::isfinite(length)) {
      f.usable = false;
      return;
    }
    f.r[j * columns + j] = length;
    for (double& x : column) {
      x /= length;
    }
  }
}

// Solves the damped normal equations of one or two coefficients.
std::vector<double> damped_step(const std::vector<std::vector<double>>& slope, std::span<const double> left,
                                double damping) {
  if (slope.size() == 1) {
    return {-dot(slope[0], left) / (dot(slope[0], slope[0]) * (1 + damping) + 1e-300)};
  }
  const double a = dot(slope[0], slope[0]) * (1 + damping) + 1e-300;
  const double b = dot(slope[0], slope[1]);
  const double d = dot(slope[1], slope[1]) * (1 + damping) + 1e-300;
  const double u = -dot(slope[0], left), v = -dot(slope[1], left);
  const double det = a * d - b * b;
  return {(u * d - b * v) / det, (a * v - b * u) / det};
}

}  // namespace

double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

Projector::Projector(const SeparableProblem& problem, std::vector<double> row_scale)
    : problem_(problem), scale_(std::move(row_scale)), rows_(problem.values.size()) {}

bool Projector::at(std::span<const double> theta, Factors& f) const {
  f.q.resize(problem_.columns * rows_);
  f.usable = false;
  if (!problem_.design(theta, f.q)) {
    return false;
  }
  for (std::size_t j = 0; j < problem_.columns; ++j) {
    for (std::size_t i = 0; i < rows_; ++i) {
      f.q[j * rows_ + i] *= scale_[i];
    }
  }
  factorise(problem_.columns, rows_, f);
  return f.usable;
}

double Projector::leave(const Factors& f, std::span<const double> y, std::span<double> left) const {
  std::copy(y.begin(), y.end(), left.begin());
  for (std::size_t j = 0; j < problem_.columns; ++j) {
    const auto column = std::span(f.q).subspan(j * rows_, rows_);
    const double part = dot(column, y);
    for (std::size_t i = 0; i < rows_; ++i) {
      left[i] -= part * column[i];
    }
  }
  return dot(left, left);
}

std::vector<double> Projector::solve(std::span<const double> theta, std::span<const double> y) const {
  Factors f;
  at(theta, f);
  const std::size_t n = problem_.columns;
  std::vector<double> c(n);
  for (std::size_t j = n; j-- > 0;) {
    double sum = dot(std::span(f.q).subspan(j * rows_, rows_), y);
    for (std::size_t k = j + 1; k < n; ++k) {
      sum -= f.r[j * n + k] * c[k];
    }
    c[j] = sum / f.r[j * n + j];
  }
  return c;
}

SearchGrid::SearchGrid(const Projector& projector) {
  const SeparableProblem& problem = projector.problem();
  std::vector<std::size_t> at(problem.axes.size(), 0);
  for (bool more = true; more;) {
    std::vector<double> here;
    for (std::size_t a = 0; a < at.size(); ++a) {
      here.push_back(problem.axes[a][at[a]]);
    }
    Factors f;
    if (projector.at(here, f)) {
      theta.push_back(std::move(here));
      factors.push_back(std::move(f));
    }
    more = false;
    for (std::size_t a = 0; a < at.size() && !more; ++a) {
      more = ++at[a] < problem.axes[a].size();
      at[a] = more ? at[a] : 0;
    }
  }
}

const std::vector<double>& SearchGrid::best(const Projector& projector, std::span<const double> y) const {
  const std::size_t rows = projector.rows();
  std::size_t best = 0;
  double most = -1;  // of y's square is explained
  for (std::size_t g = 0; g < theta.size(); ++g) {
    double explained = 0;
    for (std::size_t j = 0; j < projector.problem().columns; ++j) {
      const double part = dot(std::span(factors[g].q).subspan(j * rows, rows), y);
      explained += part * part;
    }
    if (explained > most) {
      most = explained;
      best = g;
    }
  }
  return theta[best];
}

void refine(const Projector& projector, std::span<const double> y, std::vector<double>& theta) {
  const SeparableProblem& problem = projector.problem();
  const std::size_t axes = theta.size(), rows = projector.rows();
  Factors f;
  std::vector<double> left(rows), moved(rows), step, next(axes);
  std::vector<std::vector<double>> slope(axes, std::vector<double>(rows));
  projector.at(theta, f);
  double error = projector.leave(f, y, left), damping = 1e-4;
  for (int round = 0; round < 40; ++round) {
    for (std::size_t a = 0; a < axes; ++a) {
      const double span = problem.axes[a].back() - problem.axes[a].front();
      const double h = theta[a] + 1e-6 * span <= problem.axes[a].back() ? 1e-6 * span : -1e-6 * span;
      next = theta;
      next[a] += h;
      if (!projector.at(next, f)) {
        return;
      }
      projector.leave(f, y, moved);
      for (std::size_t i = 0; i < rows; ++i) {
        slope[a][i] = (moved[i] - left[i]) / h;
      }
      // A coefficient that stands on its edge and would leave stays, so that the others are not held back by it.
      const double downhill = -dot(slope[a], left);
      if ((theta[a] >= problem.axes[a].back() && downhill > 0) ||
          (theta[a] <= problem.axes[a].front() && downhill < 0)) {
        std::fill(slope[a].begin(), slope[a].end(), 0.0);
      }
    }
    bool better = false;
    double change = 0;
    for (int attempt = 0; attempt < 12 && !better; ++attempt, damping *= better ? 1.0 : 8.0) {
      step = damped_step(slope, left, damping);
      change = 0;
      for (std::size_t a = 0; a < axes; ++a) {
        const double span = problem.axes[a].back() - problem.axes[a].front();
        next[a] = std::clamp(theta[a] + step[a], problem.axes[a].front(), problem.axes[a].back());
        change = std::max(change, std::abs(next[a] - theta[a]) / span);
      }
      if (change == 0 || !projector.at(next, f)) {
        continue;
      }
      const double then = projector.leave(f, y, moved);
      if (then < error) {
        better = true;
        damping = std::max(1e-9, damping * 0.1);
        const double gain = (error - then) / error;
        theta = next;
        left.swap(moved);
        error = then;
        if (gain < 1e-9) {
          return;
        }
      }
    }
    if (!better || change < 1e-9) {
      return;
    }
  }
}

}  // namespace orthant
