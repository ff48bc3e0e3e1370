// The routing that a run has had, as loads of a Routing.
#pragma once

#include <cstdint>
#include <filesystem>

#include "apps/cost/model_shape.h"

namespace orthant::search {

// One load for each logged step and layer, oldest first: of a layer's choices those of each expert. capacity_factor:
// above 0, no expert gets more than that many times the mean. `run`: its folder, or its metrics.jsonl. Errors:
// ConfigError where there is no such file, or no such routing in it.
cost::Routing recorded_load(const std::filesystem::path& run, std::int64_t experts, double capacity_factor);

}  // namespace orthant::search
