// A run's recording, made in this process.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/run/recorder.h"
#include "parallel/local/thread_world.h"
#include "tests/support/experiment.h"

namespace orthant::route_test {

inline std::string table(const std::string& axis, int size, const std::string& keys = "") {
  return fmt::format("[plugins.{}]\nsize = {}\n{}", axis, size, keys);
}

// A folder that goes with the test.
class Folder {
 public:
  explicit Folder(const std::string& name)
      : path_(std::filesystem::path(testing::TempDir()) / fmt::format("route_{}_{}", name, ::getpid())) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Records step `step` (from 1) after those before it. Returns its report.
inline StepReport record(const Config& config, const std::filesystem::path& run, int step = 1) {
  std::vector<StepReport> reports(static_cast<std::size_t>(check_layout(config)));
  run_threads(static_cast<int>(reports.size()), [&](Communicator& communicator) {
    test::TestRank rank(config, communicator);
    RoutingRecorder recorder(rank.session().plan());
    for (int s = 0; s < step; ++s) {
      rank.trainer().look_on(s + 1 == step ? &recorder : nullptr);
      reports[static_cast<std::size_t>(communicator.rank())] = rank.trainer().step(s);
    }
    recorder.write(run, step, rank.trainer().world(), rank.stream());
  });
  return reports.front();
}

}  // namespace orthant::route_test
