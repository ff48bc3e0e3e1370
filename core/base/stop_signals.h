// The signals that ask a run to save and end: Ctrl-C, a scheduler's request, its warning ahead of one, a lost terminal.
#pragma once

#include <signal.h>

#include <cstdint>
#include <ctime>

namespace orthant {

// SIGINT, SIGTERM, SIGUSR1 and SIGHUP, but what this process was told to ignore (nohup).
inline sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGHUP}) {
    struct sigaction action {};
    if (sigaction(number, nullptr, &action) != 0 || action.sa_handler != SIG_IGN) {
      sigaddset(&set, number);
    }
  }
  return set;
}

// The one of them that comes within `patience` seconds, taken; 0: none. REQUIRES: they are blocked in every thread.
inline int next_stop_signal(double patience) {
  const sigset_t set = stop_signals();
  const auto nanoseconds = static_cast<std::int64_t>(patience * 1e9);
  const timespec time{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
  const int number = sigtimedwait(&set, nullptr, &time);
  return number > 0 ? number : 0;
}

// Whether one comes. REQUIRES: as above.
inline bool stop_requested(double patience = 0) {
  return next_stop_signal(patience) != 0;
}

}  // namespace orthant
