// orthant bench step --why: a step beside what its products would take, and where the rest goes.
#pragma once

#include "bench/command/causes.h"
#include "core/config/config.h"

namespace orthant {

// Ranks of the layout train as threads of this process: `warmup` steps and then `steps` that are traced. Before that
// all of them make large products, and copies, at once: the rates that a step is held against.
StepCauses why_a_step_takes(const Config& config, int world_size, int warmup, int steps, StepFloor& floor);

}  // namespace orthant
