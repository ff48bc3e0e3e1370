// Starts the ranks that measure, each a process of its own, and brings home what they found.
#pragma once

#include <filesystem>
#include <string>

#include "bench/machine/measured.h"

namespace orthant::machine {

struct MeasureOptions {
  int ranks = 1;
  std::string communicator = "local", device = "cpu";
  bool quick = false;
};

// folder: for logs and results, of the caller. Errors: Error with the last lines of a rank's log; ConfigError where the
// communicator cannot be started here.
Measured measure_ranks(const MeasureOptions& options, const std::filesystem::path& folder);

// The same, in one of the processes that measure_ranks() started: writes the result, if it is rank 0.
void measure_as_rank(const MeasureOptions& options, const std::filesystem::path& result);

// The word by which measure_ranks() starts a rank: orthant bench measure-rank.
inline constexpr const char* rank_word = "measure-rank";

}  // namespace orthant::machine
