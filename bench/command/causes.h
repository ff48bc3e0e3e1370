// Why a step takes longer than its matrix products would at the rate of a large one. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "core/trace/join.h"

namespace orthant {

// What the machine can do, and what the model needs, for each rank and step.
struct StepFloor {
  double flops_per_second = 0;  // of a large matrix product of the run's type, while all ranks make one
  double bytes_per_second = 0;  // that a large copy reads and writes
  double model_flops = 0;       // of a rank's share of a step, forward and backward once, no choice dropped
};

struct Cause {
  std::string name;
  double seconds = 0;  // per step; below 0 where it saves time
  std::string key;     // of the configuration, that changes it; empty: none
  std::string detail;  // a number or two behind it; may be empty
};

// Means over ranks and traced steps: floor_seconds and the causes' seconds add up to step_seconds.
struct StepCauses {
  double step_seconds = 0;
  double floor_seconds = 0;
  std::vector<Cause> causes;  // the greatest first; those of no time are left out
};

// REQUIRES: flops_per_second and bytes_per_second are above 0. Errors: Error where the trace has no step.
StepCauses step_causes(const JoinedTrace& trace, const StepFloor& floor);

std::string to_json(const StepCauses& causes);
std::string text_of(const StepCauses& causes);

}  // namespace orthant
