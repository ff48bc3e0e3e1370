// The signals that ask a run to save and end: Ctrl-C, a scheduler's request, and its warning ahead of one.
#pragma once

#include <signal.h>

namespace orthant {

// SIGINT, SIGTERM and SIGUSR1.
inline sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGUSR1}) {
    sigaddset(&set, number);
  }
  return set;
}

}  // namespace orthant
