// What memory.recompute and memory.keep_micro_batches can be under a limit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/config/config.h"
#include "core/dry_run/promise.h"

namespace orthant {

struct RecomputeChoice {
  std::string recompute;  // "selective", "full"
  std::int64_t keep = 0;
  Need need;  // with it
};

// The most micro-batches, at most `most`, that can keep everything within the configuration's limits while the others
// do as `recompute` says; nothing where that fits for no number. To keep more takes no less memory: the search halves.
std::optional<RecomputeChoice> most_kept(const Config& config, const char* recompute, std::int64_t most);

Config with_recompute(Config config, const std::string& recompute, std::int64_t keep);

// core/plan/recompute_rule.h
std::int64_t most_in_flight(const Config& config);

}  // namespace orthant
