// Reads a recording of routing (core/run/recording.h).
#pragma once

#include <filesystem>
#include <vector>

#include "core/run/recording.h"

namespace orthant {

struct RecordedStep {
  std::int64_t step = 0;                  // from 1, as in metrics.jsonl
  std::int64_t kept_logits = 0;           // M
  std::vector<RecordedTokens> of_stages;  // whole batches, index = 0, 1, ...; the layers of a stage each
};

// The steps that were recorded, in order. Errors: ConfigError naming the folder where there are none.
std::vector<std::int64_t> recorded_steps(const std::filesystem::path& run);
// Errors: Error naming the file for a part that is missing, damaged or of another step, for numbers that are not
// finite, and where tokens are missing or there twice. Recordings of older programs have no checksums, and are read
// without.
RecordedStep read_recording(const std::filesystem::path& run, std::int64_t step, const Settings& settings);

}  // namespace orthant
