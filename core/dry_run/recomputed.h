// What a step computes again instead of keeping it.
#pragma once

#include <orthant/plan.h>

namespace orthant {

struct Recomputed {
  double flops = 0;         // of a rank in a step; the ranks of a stage share its work evenly
  int kept = 0, pairs = 0;  // of the stage's pairs of chunk and micro-batch: those that keep everything, and all
};

// Of the stage of the plan's rank, in a step, counted from 0. REQUIRES: the plan is frozen.
Recomputed recomputed_of(const Plan& plan, std::int64_t step);

}  // namespace orthant
