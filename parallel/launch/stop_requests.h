// StopRequests: what a launcher's signals ask for: that the ranks save and end, or that they are killed.
#pragma once

#include <chrono>
#include <string>

namespace orthant {

// - The first of SIGINT, SIGTERM and SIGHUP asks for a stop, and a second one kills.
// - SIGUSR1 asks, too. It is a scheduler's warning, and no signal counts less or more after it.
// - A second SIGTERM or SIGHUP within `same_request` is the same request, once: slurmstepd and srun each send SIGTERM
// at
//   a job's time limit, and systemd both signals.
class StopRequests {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds same_request{10};
  enum class Meaning { nothing, stop, kill };

  // number: one of those signals.
  Meaning hear(int number, Clock::time_point now = Clock::now());
  bool asked() const { return asked_; }

 private:
  bool asked_ = false;
  int requests_ = 0;  // without warnings and repetitions
  bool repeated_ = false;
  Clock::time_point first_{};  // of the requests
};

// "Terminated: the ranks finish their step and save (...)", with what would kill them.
std::string stop_text(int number);

}  // namespace orthant
