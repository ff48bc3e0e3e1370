// The supervisor: starts the ranks of this machine, shows what they print, and ends them together.
//
// - Every line of a rank is printed with its prefix [r3] and written to <run folder>/logs/rank_3.log.
// - When a rank fails, the shared segment tells the others why; they have `notice_seconds` to end by themselves, then
//   get SIGTERM, and SIGKILL after `grace_seconds`. The report names the rank that failed first: the one that the ranks
//   themselves found at fault, be it stopped or stuck, else the first that ended.
// - SIGINT, SIGTERM, SIGHUP and SIGUSR1 to the launcher reach every rank as SIGTERM: they finish the step, save and
//   exit with 75. What kills them: see stop_requests.h. SIGTSTP pauses launcher and ranks together. However the
//   launcher dies, no rank outlives it.
// - Nobody need read what it prints: see console.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "parallel/launch/rank_segment.h"

namespace orthant {

struct LaunchPlan {
  std::vector<std::string> command;                              // of every rank
  std::vector<std::string> restart_command;                      // of every rank after a failure
  std::vector<std::pair<std::string, std::string>> environment;  // added to that of the launcher
  std::filesystem::path run_directory;
  int world_size = 1;
  int first_rank = 0;   // the ranks of this supervisor: first_rank, first_rank + 1, ...
  int local_ranks = 1;  // how many
  int first_local_rank = 0;
  // How often in a row the ranks start again without having come further, and how long that waits: each time twice as
  // long. See restart_policy.h.
  int max_restarts = 0;
  double first_wait_seconds = 1;
  double longest_wait_seconds = 60;
  std::function<std::int64_t()> newest_checkpoint;  // its step; -1 or empty: there is none
  // The ranks ask for SIGINT, SIGTERM and SIGUSR1 themselves: these are blocked from their first moment on.
  bool ranks_ask_for_signals = false;
  bool append_logs = false;
  // Below run_directory: where logs are written until somebody renames this folder to `logs`; empty: there at once.
  std::string starting_logs;
  double notice_seconds = 1;
  double grace_seconds = 10;
  double last_words_seconds = 2;  // at the end, for a console that nobody reads
  int output = 1;                 // file descriptors of the console
  int error = 2;
  bool plain_output = false;                                                 // no progress line, even on a terminal
  std::function<std::unique_ptr<RankSegment>(int world_size)> make_segment;  // empty: the ranks share none
};

// Runs the plan to its end, restarts included, and returns the exit code of the launcher: 0; 75 where the ranks were
// stopped and saved, or while none ran and there is a checkpoint; 78 for a bad configuration; else that of the first
// failing rank (128 + signal; 1 where it was stuck).
// Blocks SIGCHLD and launcher_signals() in the calling thread meanwhile. REQUIRES: other threads block
// all signals (what they hold at a fork does not matter: the child only executes).
// Errors: Error where a rank cannot be started or a log cannot be written; ranks already started are killed.
int supervise(const LaunchPlan& plan);

// What supervise would do, for a reader: the ranks, their environment, command and logs.
std::string describe(const LaunchPlan& plan);

// Text as a word of a shell command line.
std::string shell_quoted(const std::string& word);

}  // namespace orthant
