// The secret of one start: what its ranks prove to each other that they belong together (<orthant/handshake.h>).
#pragma once

#include <orthant/handshake.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "parallel/launch/external_launcher.h"

namespace orthant {

// Where this process and the ranks that it starts find the secret. ORTHANT_SECRET, where the user has set it; else 128
// random bits, in the environment of the ranks that this process starts all by itself. Where an external launcher
// starts them, each by a process of its own, rank 0's writes them to a file of mode 0600 beside the run folder, named
// by the start's key; the others read it there. It is removed when all ranks have met, or at the end of this object.
class StartSecret {
 public:
  // For all ranks of this process. Errors: ConfigError for an ORTHANT_SECRET that is too short.
  explicit StartSecret(const EnvironmentLookup& environment);
  // For one rank of an external launcher; writes nothing where `dry`. Errors: ConfigError, as above; Error where the
  // file cannot be written.
  StartSecret(const EnvironmentLookup& environment, const ExternalRank& external,
              const std::filesystem::path& run_directory, bool dry);
  ~StartSecret();
  StartSecret(const StartSecret&) = delete;
  StartSecret& operator=(const StartSecret&) = delete;

  const SecretPlace& place() const { return place_; }
  // For the environment of the ranks.
  std::vector<std::pair<std::string, std::string>> variables() const;

 private:
  bool take_given(const EnvironmentLookup& environment);

  SecretPlace place_;
  bool wrote_ = false;
};

}  // namespace orthant
