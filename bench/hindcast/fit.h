// Fits the factors of machines and of practice to measured steps: damped least squares on ln(predicted / measured),
// with Huber's weights, and a prior on each factor so that few rows do not move it far.
//
// Thread safety: pure functions; the same rows give the same bits.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "apps/cost/machine_file.h"
#include "apps/cost/step_time.h"
#include "bench/hindcast/row.h"

namespace orthant::hindcast {

// Machines of the rows, by name.
using Machines = std::map<std::string, cost::Machine>;

// A row with what was not published filled in, and its programs built.
struct Prepared {
  Row row;
  cost::Routing routing;
  cost::StepClock clock;
};

// The micro-batch that a source does not tell is the one that takes the least time with `machine`; so are chunks, of
// which there are two at most, as few runs have more.
Prepared prepare(const Row& row, const cost::Machine& machine, const cost::Practice& practice);

double predicted_seconds(const Prepared& row, const cost::Machine& machine, const cost::Practice& practice);

// What a fit starts from and is drawn to.
cost::FactorFile prior();

// Factors of the generations of `machines`; `rows` are those to fit. Rows without measured seconds do not count.
cost::FactorFile fitted(const std::vector<const Prepared*>& rows, const Machines& machines);

// `machine` with the factors of a fit.
cost::Machine with_factors(cost::Machine machine, const cost::FactorFile& factors);

// x of a x = b, by Gaussian elimination with pivots. REQUIRES: `a` is square, and positive on its diagonal.
std::vector<double> solved(std::vector<std::vector<double>> a, std::vector<double> b);

}  // namespace orthant::hindcast
