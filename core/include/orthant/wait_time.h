// WaitTime: how long a wait has lasted, of the time in which this process could run.
//
// A scheduler may suspend a whole job (scontrol suspend), a container be frozen, Ctrl-Z stop every rank. That time
// stood still for everybody, and no rank is late by it. A process that was held finds a gap between two looks at the
// clock; one that runs while another is held finds none, and its wait goes on.
//
// Thread safety: not thread-safe.
#pragma once

#include <algorithm>
#include <chrono>

#include <orthant/abi/communicators.h>

namespace orthant {

class WaitTime {
 public:
  using Clock = std::chrono::steady_clock;

  // The wait begins with the first look.
  // The seconds that it has lasted. REQUIRES: whoever waits looks again and again, well within a second; of a longer
  // gap between two looks one second counts.
  double look(Clock::time_point now = Clock::now()) {
    if (last_ != Clock::time_point{}) {
      lasted_ += std::min<Clock::duration>(now - last_, std::chrono::seconds(1));
    }
    last_ = now;
    return std::chrono::duration<double>(lasted_).count();
  }

 private:
  Clock::time_point last_{};  // the clock's epoch: never
  Clock::duration lasted_{};
};

}  // namespace orthant
