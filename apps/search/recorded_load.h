// The routing that a run has had, as loads of its experts.
#pragma once

#include <cstdint>
#include <filesystem>

#include "apps/cost/skew.h"

namespace orthant::search {

inline constexpr std::size_t most_steps = 64;

// Of the last 64 logged steps, newest first: [step][routed layer][expert]. A step stands for a micro-batch, as only
// steps are recorded: whatever micro-batches and ranks do to each other within it evens out in these numbers.
// `run`: its folder, or its metrics.jsonl. Errors: ConfigError where there is no such file, or no such routing in it.
cost::Loads recorded_loads(const std::filesystem::path& run, std::int64_t experts);

}  // namespace orthant::search
