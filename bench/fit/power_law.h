// Power laws with a floor, in one quantity and in two:
//
//   L = E0 + A / x^alpha                      (Hestness et al., "Deep Learning Scaling is Predictable, Empirically",
//   2017) L = E0 + A / N^alpha + B / D^beta         (Hoffmann et al., "Training Compute-Optimal Large Language Models",
//   2022)
//
// x is tokens, steps, parameters or FLOPs; N parameters, D tokens. E0 is the irreducible loss. Residuals are those of
// ln L, weighed by Huber's rule.
//
// Thread safety: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "bench/fit/interval.h"

namespace orthant {

// REQUIRES: x > 0, loss > 0. Rows of one run, or seeds of one point, have the same `group`: what they share is drawn
// once. Rows of a single curve are taken as independent; where their errors follow each other, intervals are too short.
struct LossAt {
  double x = 0;
  double loss = 0;
  std::size_t group = 0;
};

struct PowerLaw {
  double floor = 0, amplitude = 0, exponent = 0;
  double loss(double x) const;
};

struct PowerLawFit {
  PowerLaw law;  // a floor below 0 says that these losses show none
  // Of floor (open below where draws reach 0), amplitude, exponent.
  std::array<Interval, 3> intervals;
  double residual_rms = 0;  // of ln L
  std::size_t rows = 0;
};

// Why it cannot be fitted: "" where it can. It needs four values of x and five rows.
std::string power_law_needs(std::span<const LossAt> rows);
// Errors: Error with that reason.
PowerLawFit fit_power_law(std::span<const LossAt> rows, const BootstrapOptions& options);

struct LossOfModelAndData {
  double parameters = 0;  // N
  double tokens = 0;      // D
  double loss = 0;
  std::size_t group = 0;
};

struct ModelDataLaw {
  double floor = 0, model_amplitude = 0, model_exponent = 0, data_amplitude = 0, data_exponent = 0;
  double loss(double parameters, double tokens) const;
};

struct ModelDataLawFit {
  ModelDataLaw law;
  std::array<Interval, 5> intervals;  // in the order of ModelDataLaw's members
  double residual_rms = 0;            // of ln L
  std::size_t rows = 0;
};

// It needs three values of N, three of D and seven rows.
std::string model_data_law_needs(std::span<const LossOfModelAndData> rows);
// Errors: Error with that reason.
ModelDataLawFit fit_model_data_law(std::span<const LossOfModelAndData> rows, const BootstrapOptions& options);

}  // namespace orthant
