// Layouts of the experiment (experiment.h) against one rank, and against each other in every bit.
#pragma once

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "apps/verify/verify.h"
#include "tests/support/experiment.h"

namespace orthant::test {

// One rank without micro-batches; computed once a process.
const Snapshot& reference_of(const Overrides& overrides, int steps = 2);

// What differs: first the first, then a line for each quantity with its tolerance.
std::string differences(const VerifyReport& report);

struct ParityOptions {
  int steps = 2;
  int ranks = 0;             // that the layout must have; 0: more than one
  Overrides only_here = {};  // of the layout alone: what does not change the mathematics, as micro-batches
  // Relative, for gradients after the first step, in fp32; `compare` has a bound of its own.
  double later_gradients = std::numeric_limits<double>::infinity();
};

// The layout `plugins` (TOML) trains as one rank does, within the tolerances of `compare`.
void expect_parity(const Overrides& overrides, const std::string& plugins, const ParityOptions& options = {});

using Tensors = std::map<std::string, std::vector<float>>;  // by name

bool same_bits(const std::vector<float>& a, const std::vector<float>& b);
void expect_same_bits(const Tensors& a, const Tensors& b, const std::string& what = "");

// Losses, gradients and their norm, weights, optimizer state, and which replicas differ. `sum_tolerance`: relative, for
// what is a sum of sums in fp64, by shard (the norm) or by micro-batch (balance and z loss).
void expect_same_bits(const Snapshot& a, const Snapshot& b, const std::string& what = "", double sum_tolerance = 0);

}  // namespace orthant::test
