// This process as one rank: what the launcher told it, and its communicator.
#pragma once

#include <orthant/group.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/config/config.h"

namespace orthant {

// From the environment that `orthant launch` sets: ORTHANT_RANK, ORTHANT_WORLD_SIZE, ORTHANT_LOCAL_FD,
// ORTHANT_RUN_DIR, ORTHANT_JOB_ID, and ORTHANT_TTY, the columns of the terminal behind rank 0's output.
struct RankEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_fd = -1;  // of the shared segment; -1: none
  std::filesystem::path run_directory;
  std::string job_id;  // of a launcher that holds the run folder's lock
  int columns = 0;
};

// Nothing where this process was not started as a rank. Errors: ConfigError for values that are not numbers.
std::optional<RankEnvironment> rank_environment();

// The only device whose memory this communicator moves; empty: any. Opens its library, starts nothing.
// Errors: ConfigError where it cannot be loaded here.
std::string communicator_device(const std::string& name);

// Runs `body` with the communicator of settings.run.communicator. A failure of `body` is told to the other ranks
// before it is thrown on. Errors: Error, ConfigError where the communicator cannot be loaded.
void with_communicator(const Config& config, const RankEnvironment& rank,
                       const std::function<void(Communicator&)>& body);

}  // namespace orthant
