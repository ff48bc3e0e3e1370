#include "bench/fit/monotone_curve.h"

#include <orthant/error.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace orthant {
namespace {

constexpr std::size_t window = 5;

// The value at `at` of the parabola through five points by least squares, and the weight of point `at` in it.
struct Local {
  double value = 0, own_weight = 0;
};

Local local_quadratic(std::span<const double> x, std::span<const double> y, std::size_t at) {
  // Orthogonal polynomials of the points themselves.
  std::vector<std::vector<double>> basis;
  for (int power = 0; power < 3; ++power) {
    std::vector<double> column;
    for (const double v : x) {
      column.push_back(std::pow(v - x[at], power));
    }
    for (const auto& earlier : basis) {
      double part = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        part += earlier[i] * column[i];
      }
      for (std::size_t i = 0; i < x.size(); ++i) {
        column[i] -= part * earlier[i];
      }
    }
    double square = 0;
    for (const double v : column) {
      square += v * v;
    }
    for (double& v : column) {
      v /= std::sqrt(square);
    }
    basis.push_back(std::move(column));
  }
  Local local;
  for (const auto& column : basis) {
    double part = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      part += column[i] * y[i];
    }
    local.value += part * column[at];
    local.own_weight += column[at] * column[at];
  }
  return local;
}

// The non-increasing sequence nearest to `values`.
std::vector<double> pooled(std::span<const double> values) {
  struct Block {
    double mean = 0;
    std::size_t count = 0;
  };
  std::vector<Block> blocks;
  for (const double value : values) {
    blocks.push_back({value, 1});
    while (blocks.size() > 1 && blocks[blocks.size() - 2].mean < blocks.back().mean) {
      const Block last = blocks.back();
      blocks.pop_back();
      Block& into = blocks.back();
      const double a = static_cast<double>(into.count), b = static_cast<double>(last.count);
      into = {(into.mean * a + last.mean * b) / (a + b), into.count + last.count};
    }
  }
  std::vector<double> result;
  for (const Block& block : blocks) {
    result.insert(result.end(), block.count, block.mean);
  }
  return result;
}

}  // namespace

MonotoneCurve::MonotoneCurve(std::span<const CurvePoint> points) {
  std::vector<double> values;
  for (const CurvePoint& point : points) {
    if (point.step <= 0) {
      continue;
    }
    require(std::isfinite(point.loss) && point.loss > 0,
            "a training curve: expected a loss above 0 at step {}, found {}", point.step, point.loss);
    log_step_.push_back(std::log(point.step));
    values.push_back(std::log(point.loss));
    require(log_step_.size() < 2 || log_step_[log_step_.size() - 2] < log_step_.back(),
            "a training curve: steps must ascend, found {} again or after a later one", point.step);
  }
  require(values.size() >= 2, "a training curve: expected two evaluations after step 0 or more, found {}",
          values.size());
  smooth_ = values;
  for (std::size_t i = 0; values.size() > window && i < values.size(); ++i) {
    const std::size_t first = std::min(i < 2 ? 0 : i - 2, values.size() - window);
    const Local local = local_quadratic(std::span(log_step_).subspan(first, window),
                                        std::span(values).subspan(first, window), i - first);
    smooth_[i] = local.value;
    if (i >= 2 && i + 2 < values.size()) {
      residuals_.push_back((values[i] - local.value) / std::sqrt(1 - std::min(local.own_weight, 0.9)));
    }
  }
  monotone_ = pooled(smooth_);
}

std::optional<double> MonotoneCurve::step_where(double loss) const {
  const double target = std::log(loss);
  for (std::size_t i = 0; i < monotone_.size(); ++i) {
    if (monotone_[i] > target) {
      continue;
    }
    if (i == 0) {
      return std::exp(log_step_[0]);
    }
    const double part = (monotone_[i - 1] - target) / (monotone_[i - 1] - monotone_[i]);
    return std::exp(log_step_[i - 1] + part * (log_step_[i] - log_step_[i - 1]));
  }
  return std::nullopt;
}

bool MonotoneCurve::begins_below(double loss) const {
  return monotone_.front() <= std::log(loss);
}

double MonotoneCurve::loss(double step) const {
  const double x = std::log(step);
  const auto above = std::lower_bound(log_step_.begin(), log_step_.end(), x);
  const std::size_t i =
      std::clamp<std::size_t>(static_cast<std::size_t>(above - log_step_.begin()), 1, log_step_.size() - 1);
  const double part = (x - log_step_[i - 1]) / (log_step_[i] - log_step_[i - 1]);
  return std::exp(monotone_[i - 1] + part * (monotone_[i] - monotone_[i - 1]));
}

std::vector<CurvePoint> MonotoneCurve::smooth(std::span<const double> shift) const {
  std::vector<CurvePoint> points;
  for (std::size_t i = 0; i < smooth_.size(); ++i) {
    points.push_back({std::exp(log_step_[i]), std::exp(smooth_[i] + (shift.empty() ? 0 : shift[i]))});
  }
  return points;
}

}  // namespace orthant
