// The supervisor: starts the ranks of this machine, shows what they print, and ends them together.
//
// - Every line of a rank is printed with its prefix [r3] and written to <run folder>/logs/rank_3.log.
// - When a rank fails, the shared segment tells the others why; they have `notice_seconds` to end by themselves, then
//   get SIGTERM, and SIGKILL after `grace_seconds`. The report names the rank that failed first.
// - SIGINT, SIGTERM and SIGHUP to the launcher reach every rank as SIGTERM (they finish the step, save and exit with
//   75); a second one kills them. However the launcher dies, no rank outlives it.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace orthant {

// What the supervisor needs of the memory that ranks on one machine share.
class RankSegment {
 public:
  virtual ~RankSegment() = default;
  virtual int descriptor() const = 0;
  // The first reason wins.
  virtual void mark_failed(int rank, const std::string& why) noexcept = 0;
  // The rank of the first reason; -1 where there is none.
  virtual int first_failed() const noexcept = 0;
};

struct LaunchPlan {
  std::vector<std::string> command;                              // of every rank
  std::vector<std::string> restart_command;                      // of every rank after a failure
  std::vector<std::pair<std::string, std::string>> environment;  // added to that of the launcher
  std::filesystem::path run_directory;
  int world_size = 1;
  int first_rank = 0;   // the ranks of this supervisor: first_rank, first_rank + 1, ...
  int local_ranks = 1;  // how many
  int first_local_rank = 0;
  int max_restarts = 0;
  bool append_logs = false;
  // Below run_directory: where logs are written until somebody renames this folder to `logs`; empty: there at once.
  std::string starting_logs;
  double notice_seconds = 1;
  double grace_seconds = 10;
  int output = 1;  // file descriptors of the console
  int error = 2;
  bool plain_output = false;                                                 // no progress line, even on a terminal
  std::function<std::unique_ptr<RankSegment>(int world_size)> make_segment;  // empty: the ranks share none
};

// Runs the plan to its end, restarts included, and returns the exit code of the launcher: 0; 75 where the ranks were
// stopped and saved; 78 for a bad configuration; else that of the first failing rank (128 + signal).
// Blocks SIGCHLD, SIGINT, SIGTERM and SIGHUP in the calling thread meanwhile. REQUIRES: other threads block all signals
// (what they hold at a fork does not matter: the child only executes).
// Errors: Error where a rank cannot be started or a log cannot be written; ranks already started are killed.
int supervise(const LaunchPlan& plan);

// What supervise would do, for a reader: the ranks, their environment, command and logs.
std::string describe(const LaunchPlan& plan);

// Text as a word of a shell command line.
std::string shell_quoted(const std::string& word);

}  // namespace orthant
