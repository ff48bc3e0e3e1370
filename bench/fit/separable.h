// Variable projection: least squares of models that are linear in most coefficients and non-linear in one or two
// (Golub and Pereyra, "The Differentiation of Pseudo-Inverses and Nonlinear Least Squares Problems", 1973). A grid over
// the non-linear ones finds the basin, Gauss-Newton refines it, and the rest is a linear solve inside.
//
// Thread safety: pure functions of their arguments.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "bench/fit/interval.h"

namespace orthant {

// How far a row is from the model's value f.
enum class Residual {
  plain,      // value - f: the values are logarithms already
  log_ratio,  // ln(value / f): the model is linear in the loss itself. REQUIRES: values > 0
};

struct SeparableProblem {
  std::size_t columns = 0;                // linear coefficients
  std::vector<double> values;             // [rows] what is measured
  std::vector<std::size_t> points;        // [rows] number of the point that the row's run belongs to: seeds share one
  std::vector<std::vector<double>> axes;  // grid of each non-linear coefficient, ascending, two values or more
  Residual residual = Residual::plain;
  // Writes [columns, rows] at the non-linear coefficients `theta`; false where there is no such model.
  std::function<bool(std::span<const double> theta, std::span<double> design)> design;
};

struct SeparableFit {
  std::vector<double> theta;         // non-linear coefficients, within their axes
  std::vector<double> coefficients;  // linear ones
  std::vector<double> fitted;        // [rows] f
  std::vector<double> residuals;     // [rows]
  std::vector<double> weights;       // [rows] Huber's: 1, and less for rows beyond 1.345 scales
  std::vector<double> leverage;      // [rows] share of the row's own value in its fitted one, 0..1
  double scale = 0;                  // of residuals, from their median size
  double rms = 0;                    // of residuals, all rows
};

// Whether the rows determine the coefficients: anywhere on the grid, with a row to spare.
bool determined(const SeparableProblem& problem);

// Huber's estimate (k = 1.345, scale from the median of absolute residuals) by iteratively reweighted least squares:
// a single run far off moves it little.
// Errors: Error where the rows do not determine the coefficients.
SeparableFit fit_separable(const SeparableProblem& problem);

// Refits of resampled data.
struct Resamples {
  std::size_t axes = 0, columns = 0;
  std::vector<double> values;  // [count, axes + columns]: theta, then coefficients
  std::size_t count() const { return axes + columns == 0 ? 0 : values.size() / (axes + columns); }
  std::span<const double> draw(std::size_t i) const {
    return std::span(values).subspan(i * (axes + columns), axes + columns);
  }
  // Draws of one non-linear coefficient, infinite where it stands on the edge of its axis.
  std::vector<double> theta_or_infinite(const SeparableProblem& problem, std::size_t axis) const;
};

// A bootstrap over runs, and over seeds inside a point. A resample is the fitted model plus drawn residuals. These are
// Huber's clipped ones, scaled up for the rows' leverage and for the share of clipped rows. Where points have several
// seeds, the part of the variance that seeds of one point share is drawn once a point, and the rest for each run.
// The design stays as it is: a study has few points, and a draw without one of its sizes would fit nothing.
Resamples resample(const SeparableProblem& problem, const SeparableFit& fit, const BootstrapOptions& options);

}  // namespace orthant
