// Ranks that compute on the cores of one machine, and share them where there are more ranks than cores: the sum of
// their work over the cores is what binds then, not the slowest rank.
//
// Cores are handed on without loss: a rank that waits costs nobody anything, and all that work get equal parts.
//
// Thread safety: pure functions.
#pragma once

#include "apps/cost/clock.h"
#include "apps/cost/machine.h"

namespace orthant::cost {

// How much longer work takes while `ranks` ranks are at it, than on a core with all others at rest. 1 where each rank
// has a device of its own.
double slowdown(const Cores& cores, double ranks);

// run_clock() where the `ranks` of a stage work at the same time, and stages share cores. durations: s on a core with
// all others at rest. busy: s that a stage is at work. critical and critical_messages stay zero: no chain of tasks
// decides. Errors: as run_clock().
ClockResult run_shared_clock(const PipelineProgram& program, const PieceDurations& durations, double message,
                             double ranks, const Cores& cores);

}  // namespace orthant::cost
