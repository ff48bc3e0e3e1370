// What separable.cpp and resample.cpp are made of: linear least squares at given non-linear coefficients, on a grid of
// them, and beside it. Internal to bench/fit.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "bench/fit/separable.h"

namespace orthant {

double dot(std::span<const double> a, std::span<const double> b);

// A design as orthonormal columns q [columns, rows] and r [columns, columns], upper triangular.
struct Factors {
  std::vector<double> q, r;
  bool usable = false;
};

// Least squares of one problem with its rows scaled by `row_scale`.
class Projector {
 public:
  Projector(const SeparableProblem& problem, std::vector<double> row_scale);

  // The design at theta, scaled and factorised. False where there is none, or where its columns depend on each other.
  bool at(std::span<const double> theta, Factors& f) const;
  // What is left of y (scaled) without the columns; its square is returned.
  double leave(const Factors& f, std::span<const double> y, std::span<double> left) const;
  // The linear coefficients of y (scaled) at theta. REQUIRES: at(theta) is true.
  std::vector<double> solve(std::span<const double> theta, std::span<const double> y) const;

  const SeparableProblem& problem() const { return problem_; }
  std::size_t rows() const { return rows_; }

 private:
  const SeparableProblem& problem_;
  std::vector<double> scale_;
  std::size_t rows_;
};

// The factorised designs of a whole grid: made once, used by each resample. Theta without a design is left out.
struct SearchGrid {
  std::vector<std::vector<double>> theta;
  std::vector<Factors> factors;

  explicit SearchGrid(const Projector& projector);
  bool empty() const { return theta.empty(); }
  // The theta that leaves least of y. REQUIRES: not empty.
  const std::vector<double>& best(const Projector& projector, std::span<const double> y) const;
};

// Levenberg's and Marquardt's steps from theta on what the projection leaves, within the axes.
void refine(const Projector& projector, std::span<const double> y, std::vector<double>& theta);

}  // namespace orthant
