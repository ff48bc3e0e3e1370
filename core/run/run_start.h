// RunStart: what a run begins with, or goes on from, on one rank, until its first step.
//
// Thread safety: one per rank; not shared. Every rank makes the same calls.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "core/run/run_claim.h"
#include "core/run/run_ids.h"
#include "core/run/run_log.h"
#include "core/run/run_parts.h"

namespace orthant {

class RunStart {
 public:
  explicit RunStart(const RunParts& parts) : parts_(parts) {}

  // Claims the folder, on rank 0, and fills the trainer from the checkpoint that --resume asks for, else from
  // train.from, else from nothing. Then the teacher. Collective over the world.
  // Errors: those of RunClaim, require_shared_folder, find_checkpoint, load_checkpoint and load_weights; of
  // load_teacher.
  void resume();
  void take_teacher();

  // Takes the folder over, right before the first step, and opens `log` in it. On rank 0 alone; the others cannot write
  // before the first step, which they take together. Errors: those of RunClaim::begin and RunLog.
  void begin(std::optional<RunLog>& log);
  // Of the folder, on every rank. Collective over the world. REQUIRES: begun.
  RunIds shared_ids();

  std::int64_t step() const { return step_; }      // steps done
  std::int64_t tokens() const { return tokens_; }  // of those, of all workers
  const std::string& taught_by() const { return taught_by_; }

 private:
  void take_starting_weights();

  RunParts parts_;
  std::optional<RunClaim> claim_;                  // of rank 0
  std::filesystem::path from_;                     // the checkpoint that it goes on from; empty: none
  std::map<std::string, std::string> from_state_;  // of its manifest
  std::filesystem::path origin_;                   // on rank 0, the checkpoint that train.from named
  std::string taught_by_;                          // load_teacher
  std::int64_t step_ = 0;
  std::int64_t tokens_ = 0;
};

}  // namespace orthant
