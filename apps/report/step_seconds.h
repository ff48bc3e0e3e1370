// How long the logged steps of a run took.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace orthant::report {

struct StepSeconds {
  std::int64_t step = 0;
  double seconds = 0;
};

// Of the lines of metrics.jsonl that say so; none where there is no such file. Errors: ConfigError naming file and
// line.
std::vector<StepSeconds> step_seconds_in(const std::filesystem::path& run);

}  // namespace orthant::report
