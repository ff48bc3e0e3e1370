// A training run on one rank, from its configuration to its last checkpoint.
#pragma once

#include <filesystem>
#include <string>

#include "core/config/config.h"
#include "core/session/session.h"

namespace orthant {

struct RunOptions {
  std::string resume;                   // "", "auto", the folder of a checkpoint, "auto:FOLDER"
  std::filesystem::path run_directory;  // runs/NAME
  std::string job_id;                   // of the launcher that holds the folder's lock; empty: rank 0 takes it
  int columns = 0;                      // of the terminal that rank 0 writes to; 0: none
};

// Trains to run.steps. stop_signals(), which the caller has blocked in every thread, let the step end, then save.
// Returns ExitCode::ok, or stopped_resumable. Collective over the world.
ExitCode train_run(const Config& config, const RunOptions& options, Communicator& communicator);

}  // namespace orthant
