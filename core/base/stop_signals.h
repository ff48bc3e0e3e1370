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

// Whether one of them comes within `patience` seconds; takes it. REQUIRES: they are blocked in every thread.
inline bool stop_requested(double patience = 0) {
  const sigset_t set = stop_signals();
  const auto nanoseconds = static_cast<std::int64_t>(patience * 1e9);
  const timespec time{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
  return sigtimedwait(&set, nullptr, &time) > 0;
}

}  // namespace orthant
