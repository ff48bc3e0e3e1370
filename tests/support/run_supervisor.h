// Runs the supervisor in a process of its own, with a shell script as every rank, and collects what it prints.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>

#include "parallel/launch/supervisor.h"

namespace orthant::launch_test {

// A fresh folder, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

std::string read_file(const std::filesystem::path& file);

// Whether a process exists and is not a zombie.
bool is_alive(pid_t pid);

// That it has taken so far. REQUIRES: it exists.
double processor_seconds(pid_t pid);

// Polls for at most ten seconds.
bool eventually(const std::function<bool()>& condition);

// A supervisor in the background; killed, if it still runs, at the end.
class Running {
 public:
  // `run` is called in the child with its output and error going to files; its result is the exit code.
  Running(const std::filesystem::path& folder, const std::function<int()>& run);
  ~Running();

  pid_t pid() const { return pid_; }
  // The exit code of the supervisor, or -signal.
  int wait();
  std::string output() const { return read_file(folder_ / "stdout"); }
  std::string error() const { return read_file(folder_ / "stderr"); }

 private:
  std::filesystem::path folder_;
  pid_t pid_ = -1;
};

// Every rank runs `sh -c script`, with short times of grace.
LaunchPlan shell_plan(const std::filesystem::path& folder, int ranks, const std::string& script);

struct Result {
  int code;
  std::string output;
  std::string error;
};
Result run_to_end(const std::filesystem::path& folder, const LaunchPlan& plan);

}  // namespace orthant::launch_test
