// RunClaim: rank 0's hold on the run folder, from its start to its last checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "core/config/config.h"
#include "core/run/run_ids.h"
#include "core/run/run_lock.h"

namespace orthant {

// config.resolved.toml of the folder, which is made. Errors: Error.
void write_resolved(const std::filesystem::path& run_folder, const RunIds& ids, const Config& config);

class RunClaim {
 public:
  // job_id: of the launcher that holds the folder's lock; empty: none does, and this process takes the lock. resume: as
  // the user gave it. Nothing in the folder is changed.
  // Errors: ConfigError where another job is in the folder.
  RunClaim(std::filesystem::path run_folder, const std::string& resume, const std::string& job_id);

  // What to resume from: as given; or where this job has begun already (its launcher has restarted it), what it has
  // done since.
  const std::string& resume() const { return resume_; }

  // Refuses a checkpoint in the folder that is of another run than the folder is. state: of its manifest.
  // Errors: ConfigError.
  void check(const std::filesystem::path& checkpoint, const std::map<std::string, std::string>& state) const;

  // Takes the folder over, right before the first step: an earlier run makes way, or checkpoints of later steps than
  // `step` do, and config.resolved.toml is written. checkpoint: what the run goes on from; empty: nothing. state: of
  // its manifest. Errors: Error.
  void begin(const Config& config, const std::filesystem::path& checkpoint,
             const std::map<std::string, std::string>& state, std::int64_t step);

  const RunIds& ids() const { return ids_; }

 private:
  bool is_own(const std::filesystem::path& checkpoint) const;  // lies in the folder
  void make_way(std::int64_t step);

  std::filesystem::path run_folder_;
  std::string resume_;
  bool by_launcher_;
  std::unique_ptr<RunLock> lock_;
  RunIds there_;  // of what was in the folder before
  RunIds ids_;
};

}  // namespace orthant
