// RankProcess: one started rank, its pipes and how it ended.
#pragma once

#include <sys/types.h>

#include <signal.h>

#include <set>
#include <string>
#include <vector>

#include "parallel/launch/descriptor.h"
#include "parallel/launch/rank_output.h"

namespace orthant {

// How a process ended.
struct Ending {
  int code = 0;    // where signal == 0
  int signal = 0;  // 0: it exited by itself
  // That it had used; of the process, not of those that it left.
  double processor_seconds = 0;

  bool failed() const;            // neither 0 nor "stopped, resumable"
  int exit_code() const;          // as a shell has it: 128 + signal
  std::string to_string() const;  // "was killed by signal 9 (Killed)", "ended with code 1"
};

struct SpawnRequest {
  std::vector<std::string> command;      // command[0] is looked up in PATH where it has no slash
  std::vector<std::string> environment;  // complete, NAME=value
  int inherited_descriptor = -1;         // stays open in the child under the same number; -1: none
  sigset_t signal_mask;                  // of the child
};

// The child is the leader of its own process group and is killed when the launcher dies, however it dies.
class RankProcess {
 public:
  // Errors: Error where no process can be started. A program that cannot be run ends with code 127.
  RankProcess(int rank, const SpawnRequest& request, RankOutput output);

  int rank() const { return rank_; }
  pid_t process() const { return pid_; }
  bool is_running() const { return running_; }
  const Ending& ending() const { return ending_; }
  RankOutput& output() { return output_; }
  int output_descriptor() const { return standard_output_.get(); }  // -1: at its end
  int error_descriptor() const { return standard_error_.get(); }

  // To the rank and every process it started.
  void signal(int number);
  bool was_told_to_end() const { return !sent_.empty(); }  // by us, while it ran
  // Whether a signal of ours was what ended it.
  bool was_ended_by_us() const { return ending_.signal != 0 && sent_.contains(ending_.signal); }
  // Reads what stands in the pipes, without waiting.
  void read_output();
  // True when the rank has just ended: its output is complete, processes it left behind are killed.
  bool reap();

 private:
  void drain(Descriptor& pipe, bool is_error);

  int rank_;
  pid_t pid_ = -1;
  bool running_ = true;
  std::set<int> sent_;
  Ending ending_;
  Descriptor standard_output_;
  Descriptor standard_error_;
  std::string program_;  // for messages
  Descriptor refusal_;   // an errno, where the program could not be run
  RankOutput output_;
};

}  // namespace orthant
