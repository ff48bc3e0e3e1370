#include "parallel/launch/signal_scope.h"

#include <orthant/error.h>

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/base/stop_signals.h"

namespace orthant {
namespace {

constexpr int launcher_numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGTSTP};

}  // namespace

sigset_t launcher_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : launcher_numbers) {
    struct sigaction action {};
    if (sigaction(number, nullptr, &action) != 0 || action.sa_handler != SIG_IGN) {
      sigaddset(&set, number);
    }
  }
  return set;
}

void hold_launcher_signals() {
  const sigset_t set = launcher_signals();
  sigprocmask(SIG_BLOCK, &set, nullptr);
}

void release_launcher_signals() {
  const sigset_t set = launcher_signals();
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

SignalScope::SignalScope() {
  sigset_t set = launcher_signals();
  sigaddset(&set, SIGCHLD);
  sigprocmask(SIG_BLOCK, &set, &previous_);
  previous_pipe_ = ::signal(SIGPIPE, SIG_IGN);
  descriptor_ = Descriptor(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!descriptor_.is_open()) {
    fail("cannot listen for signals: {}", strerror(errno));
  }
}

SignalScope::~SignalScope() {
  while (next()) {  // nothing is left that they could stop
  }
  ::signal(SIGPIPE, previous_pipe_);
  sigprocmask(SIG_SETMASK, &previous_, nullptr);
}

std::optional<int> SignalScope::next() {
  signalfd_siginfo information{};
  if (read(descriptor_.get(), &information, sizeof(information)) != sizeof(information)) {
    return std::nullopt;
  }
  return static_cast<int>(information.ssi_signo);
}

sigset_t SignalScope::mask_for_ranks(bool they_ask) const {
  sigset_t mask = previous_;
  const sigset_t asked = stop_signals();
  for (const int number : launcher_numbers) {
    they_ask&& sigismember(&asked, number) == 1 ? sigaddset(&mask, number) : sigdelset(&mask, number);
  }
  return mask;
}

}  // namespace orthant
