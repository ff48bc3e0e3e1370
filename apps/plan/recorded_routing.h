// The routing that a run has had, from its metrics.jsonl: for a plan of what it takes.
#pragma once

#include <cstdint>
#include <filesystem>

namespace orthant {

// Of the choices that the experts of a layer computed, the largest share that those of one rank had, over all logged
// steps and layers, if `ranks` ranks shared `experts` experts out. `run`: its folder, or its metrics.jsonl. A step's
// micro-batches and the ranks beside these are taken to have been alike: that is all that is recorded.
// Errors: ConfigError where there is no such file, or no such routing in it.
double recorded_share(const std::filesystem::path& run, std::int64_t experts, int ranks);

}  // namespace orthant
