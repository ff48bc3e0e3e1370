// How many bytes a rank writes into a checkpoint, by a plan: from what it knows of itself.
#pragma once

#include <cstdint>

#include "core/layers/parameter_store.h"

namespace orthant {

// At most, where keepers share a group out in equal ranges, each among equally many ranks of its sum: weights, the
// optimizer's states, and what plugins and gates remember. Ranks that hold the same write equal parts of it
// (core/run/written_runs.h).
std::int64_t most_bytes_saved(const ParamStore& store, const Plan& plan);

}  // namespace orthant
