// A layout of ranks of this machine, trained for a few steps for its time.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "bench/machine/measure_ranks.h"

namespace orthant::machine {

struct TimedLayout {
  std::vector<std::string> set;  // of the configuration, as --set takes it
  std::string communicator = "local", device = "cpu";
  int steps = 30;
};

// Median seconds of the steps after the first few. folder: for the run, of the caller. Errors: Error with the end of
// the run's log.
double median_step_seconds(const TimedLayout& layout, const std::filesystem::path& folder);

// A step of nearly no work on the ranks of `options`, each with one sequence of a few tokens.
double empty_step_seconds(const MeasureOptions& options, const std::filesystem::path& folder);

}  // namespace orthant::machine
