// What has been timed of a study so far, on disk: timing takes minutes, and a session that ends in it loses one run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace orthant {

// A shape in one round.
struct TimedRound {
  std::optional<double> step_seconds;  // none where it failed
  std::string why;                     // what why_command printed; empty where that failed
};

// timings.json: {"cores": of the machine, "steps": of a run, "shapes": {shape: [{"step_seconds", "why"} of a round]}}.
// What another number of cores or steps gave counts for nothing, nor does a file that cannot be read.
class TimingFile {
 public:
  TimingFile(std::filesystem::path file, int cores, std::int64_t steps);

  std::optional<TimedRound> find(const std::string& shape, std::size_t round) const;
  // REQUIRES: the earlier rounds of the shape are there. Errors: Error of the disk.
  void add(const std::string& shape, std::size_t round, const TimedRound& timed);

 private:
  std::filesystem::path file_;
  nlohmann::json all_;
};

}  // namespace orthant
