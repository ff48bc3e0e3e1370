// RankStart: what the ranks that this process starts are told: their shared memory, or where they meet, and the secret
// by which they know each other.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/config/config.h"
#include "parallel/launch/external_launcher.h"
#include "parallel/launch/local_meeting.h"
#include "parallel/launch/start_secret.h"
#include "parallel/launch/supervisor.h"

namespace orthant {

// Refuses a communicator that cannot serve ranks started this way, with what can. Errors: ConfigError.
void check_communicator(const Config& config, const std::optional<ExternalRank>& external, int world_size,
                        bool by_hostfile);

class RankStart {
 public:
  // Sets the plan's ranks (all of this machine, or the one that `external` says), their environment and memory. run: of
  // their configuration. secret_beside: a path that all ranks of the start find, beside which their secret may lie.
  // dry: nothing is written. The plan is not moved meanwhile.
  RankStart(LaunchPlan& plan, const RunSettings& run, std::optional<ExternalRank> external, int world_size,
            std::filesystem::path secret_beside, bool dry);

  // Before supervise(): ranks of an external launcher come to share memory. Returns when they do. Errors: Error.
  void meet();
  std::string describe() const;  // "4 local ranks", or who started this one

 private:
  LaunchPlan& plan_;
  const RunSettings run_;
  std::optional<ExternalRank> external_;
  std::filesystem::path secret_beside_;
  std::optional<StartSecret> secret_;      // of ranks that find each other themselves
  std::unique_ptr<LocalMeeting> meeting_;  // to the end: it notices when another rank's launcher is gone
};

}  // namespace orthant
