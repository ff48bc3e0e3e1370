// The launcher's signals: blocked, and read one by one.
#pragma once

#include <signal.h>

#include <optional>

#include "parallel/launch/descriptor.h"

namespace orthant {

// The signals that end or pause a launcher: SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGTSTP, without those that whoever
// started this process told it to ignore (nohup, a shell's background job).
sigset_t launcher_signals();

// From here on they wait, for the supervisor; or reach this process, and a program that takes its place, again.
void hold_launcher_signals();
void release_launcher_signals();

// The same for the time that it lives, with SIGCHLD. Afterwards all is as before; SIGPIPE is ignored meanwhile.
class SignalScope {
 public:
  SignalScope();  // Errors: Error
  ~SignalScope();
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;

  int descriptor() const { return descriptor_.get(); }  // to poll for POLLIN
  // The next signal that came, without waiting.
  std::optional<int> next();
  // The mask for a program that is started now: the launcher's signals reach it. Where it asks for requests to stop by
  // itself, those wait for it from its first moment on.
  sigset_t mask_for_ranks(bool they_ask) const;

 private:
  sigset_t previous_{};
  void (*previous_pipe_)(int) = SIG_DFL;
  Descriptor descriptor_;
};

}  // namespace orthant
