// RunSaver: the checkpoints of a run, on one rank: each is written in the run's own folder alone, and old ones leave.
//
// Thread safety: one per rank; not shared. Every rank makes the same calls.
#pragma once

#include <cstdint>
#include <string>

#include "core/run/pruner.h"
#include "core/run/run_ids.h"
#include "core/run/run_log.h"
#include "core/run/run_parts.h"

namespace orthant {

// In the state of a checkpoint: the steps before it that were passed over in a row, where there are any.
inline constexpr const char* passed_over_state = "passed_over";

class RunSaver {
 public:
  explicit RunSaver(const RunParts& parts);

  // Whose the folder is, and which teacher the run has (load_teacher; empty: none). Before the first save.
  void begin(RunIds ids, std::string taught_by);

  // Saves after step `step`, with `tokens` trained on. log: the run's, on rank 0. Collective over the world.
  // Errors: those of save_checkpoint; ConfigError where another job has taken the folder.
  void save(std::int64_t step, std::int64_t tokens, const RunLog* log);

  // Warnings of prunes that failed. finish: waits for the last prune first.
  void tell_of_pruning();
  void finish();

 private:
  void save_anywhere(std::int64_t step, std::int64_t tokens, const RunLog* log);

  RunParts parts_;
  Pruner pruner_;
  RunIds ids_;
  std::string taught_by_;
};

}  // namespace orthant
