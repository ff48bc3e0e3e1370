// The built `orthant` program as a user runs it, in a folder of its own, and what a run leaves there.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/run_supervisor.h"

namespace orthant::run_test {

// A tiny model (d_model 16, two routed layers) on a small text, trained by `data` ranks of which `expert` share the
// experts. Keys are changed and added by --set.
struct Layout {
  int data = 1;
  int expert = 1;
};
std::string tiny_config(Layout layout);

struct Result {
  int code;  // of the exit, or -signal
  std::string output;
  std::string error;
};

class ProgramFolder {
 public:
  ProgramFolder();

  std::filesystem::path path(const std::string& name = "") const { return folder_.path() / name; }
  std::filesystem::path run(const std::string& name = "r") const { return path("runs") / name; }
  std::filesystem::path checkpoint(int step, const std::string& name = "r") const;
  void write(const std::string& name, const std::string& text) const;

  std::vector<double> losses(const std::string& name = "r") const;  // of the lines in the run's metrics

  // `orthant WORDS...` in this folder, to its end; `environment`: NAME=value, added.
  Result orthant(const std::vector<std::string>& words, const std::vector<std::string>& environment = {}) const;
  // Any command; and one in the background.
  Result command(const std::vector<std::string>& words, const std::vector<std::string>& environment = {}) const;
  std::unique_ptr<launch_test::Running> start(const std::vector<std::string>& words,
                                              const std::vector<std::string>& environment = {}) const;

 private:
  launch_test::TemporaryFolder folder_;
};

// Why ranks cannot be started by mpirun here; empty: they can.
std::string why_no_mpirun();

// "--set", "KEY=VALUE" for each.
std::vector<std::string> with_set(std::vector<std::string> words, const std::vector<std::string>& values);

// The lines of a file.
std::vector<std::string> lines_of(const std::filesystem::path& file);

// Process numbers of the ranks below a launcher, by rank.
std::map<int, pid_t> ranks_of(pid_t launcher);

// Every tensor of a checkpoint, whole, as bytes.
std::map<std::string, std::vector<std::byte>> gathered(const std::filesystem::path& checkpoint);

// Names of the tensors that differ in any bit, or that one side lacks; empty: none does.
std::vector<std::string> differences(const std::filesystem::path& a, const std::filesystem::path& b);

// Names under /dev/shm that speak of Orthant.
std::vector<std::string> shared_memory_left();

}  // namespace orthant::run_test
