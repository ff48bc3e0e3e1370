// The signals that ask a run to save and end: Ctrl-C, a scheduler's request, its warning ahead of one, a lost terminal.
#pragma once

#include <signal.h>

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

}  // namespace orthant
