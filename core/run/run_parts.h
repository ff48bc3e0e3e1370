// RunParts: what the pieces of one rank's run work on.
#pragma once

#include <filesystem>

#include "core/run/train_run.h"
#include "core/train/teacher.h"
#include "core/train/trainer.h"

namespace orthant {

// All of it outlives the pieces.
struct RunParts {
  const Config& config;
  const RunOptions& options;
  Communicator& communicator;
  Group& world;
  Stream& stream;
  Plan& plan;
  Trainer& trainer;
  Teacher* teacher;  // null: none

  const Settings& settings() const { return config.settings; }
  bool first() const { return world.rank() == 0; }
  std::filesystem::path checkpoints() const { return options.run_directory / "checkpoints"; }
};

}  // namespace orthant
