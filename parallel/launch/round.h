// Round: one start of all ranks of a supervisor, to the end of the last of them.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/launch/memory_kills.h"
#include "parallel/launch/rank_lines.h"
#include "parallel/launch/rank_process.h"
#include "parallel/launch/restart_policy.h"
#include "parallel/launch/signal_scope.h"
#include "parallel/launch/stop_requests.h"
#include "parallel/launch/supervisor.h"

namespace orthant {

struct Outcome {
  int code = 0;
  bool may_restart = false;
  FailedRound failed;  // where it may restart; without the checkpoint
};

class Round {
 public:
  // Starts the ranks. Errors: Error where one cannot be; those already started are killed.
  Round(const LaunchPlan& plan, bool is_restart, SignalScope& signals, Console& console);
  Outcome run();

 private:
  using Clock = std::chrono::steady_clock;

  // Who failed first, and how.
  struct Verdict {
    RankProcess* rank;
    bool held_up;     // the others, and did not end by itself
    std::string how;  // "was killed by ...", "is stopped ..."
    int code;
    std::optional<KillAccount> kill;
  };

  int count_running() const;
  RankProcess* find(int rank) const;
  void signal_all(int number);
  void wait();
  void take_signal(int number);
  void pause();
  void reap();
  void note_failure();
  void announce();
  void schedule(double seconds);
  void escalate();
  void show_held();
  Outcome conclude();
  Verdict verdict() const;
  void report(const Verdict& verdict);
  FailedRound failed_round(const Verdict& verdict) const;

  const LaunchPlan& plan_;
  SignalScope& signals_;
  Console& console_;
  Clock::time_point started_;
  MemoryKills kills_before_;
  std::unique_ptr<RankSegment> segment_;
  RankLines lines_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  RankProcess* first_ended_ = nullptr;                // of those that failed
  std::optional<RankFailure> named_;                  // by the ranks themselves
  char named_state_ = 0;                              // of that rank's process then; 0: it did not run any more
  std::optional<Clock::time_point> next_escalation_;  // when the survivors of a failure get the next signal
  std::optional<Clock::time_point> next_show_;        // of lines that are held back
  bool we_ended_ = false;                             // the survivors got SIGTERM from us
  StopRequests requests_;
  int killed_by_ = 0;  // the signal that told us to kill the ranks
};

}  // namespace orthant
