// The promise of memory.limit: a run that starts cannot need more on any rank, whatever its router does.
//
// What is promised is the upper bound of a plan (RankClass::worst). It counts tensors: not what libraries keep for
// themselves, nor code, nor what an allocator rounds up.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config/config.h"
#include "core/dry_run/planning.h"

namespace orthant {

// Of the ranks that may need most.
struct Need {
  std::vector<int> ranks;
  std::int64_t worst = 0, balanced = 0;  // bytes, by the worst and by balanced routing
  BytesByKind kinds;                     // of `worst`
  std::int64_t sent = 0;                 // the most bytes that leave a rank in a step
  double recomputed = 0;                 // FLOPs that a rank does again in a step, the mean of all ranks
  std::vector<int> host_ranks;           // that may need most of the host's memory
  std::int64_t host = 0;                 // how much: tensors, by the worst routing
};
// Errors: ConfigError, as check_layout's.
Need memory_need(const Config& config);
bool keeps_limits(const Need& need, const MemorySettings& limits);

// Replaces recompute = "fit" in config.settings by the cheapest of "none", "selective" and "full" that keeps the limit,
// each with the most keep_micro_batches, the same on every rank. Checks that the limits are kept. Does nothing without
// memory.limit and memory.host_limit. Returns a sentence about what was chosen, or "". Errors: ConfigError that tells
// the need by kinds, and changes that were found to fit.
std::string promise_memory(Config& config);

}  // namespace orthant
