// Changes of a configuration that take less memory, and what each costs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config/config.h"
#include "core/dry_run/promise.h"

namespace orthant {

// A change that was tried in a dry run.
struct Saving {
  std::string what;          // memory.recompute = "full"
  Need need;                 // with it
  double flops = 0;          // computed again in a step, by a rank (the mean)
  std::int64_t bytes = 0;    // sent more in a step, by each rank
  bool drops = false;        // it changes what is learned: choices beyond a capacity are dropped
  double price() const;      // to compare, as operations
  std::string cost() const;  // to tell
};

// Those that keep the configuration's limits, the cheapest first, what changes the result last. now: the need without
// them.
std::vector<Saving> fitting_changes(const Config& config, const Need& now);

}  // namespace orthant
