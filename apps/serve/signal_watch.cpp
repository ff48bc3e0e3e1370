#include "apps/serve/signal_watch.h"

#include <cstdlib>
#include <utility>

#include "core/base/output.h"
#include "core/base/stop_signals.h"

namespace orthant {
namespace {

constexpr double look_every = 0.1;  // seconds

}  // namespace

SignalWatch::SignalWatch() {
  const sigset_t signals = stop_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  thread_ = std::thread([this] { watch(); });
}

SignalWatch::~SignalWatch() {
  ended_ = true;
  thread_.join();
}

SignalWatch::Stop::Stop(SignalWatch& watch, std::function<void()> stop) : watch_(watch) {
  watch_.set_stop(std::move(stop));
}

SignalWatch::Stop::~Stop() {
  watch_.set_stop(nullptr);
}

void SignalWatch::set_stop(std::function<void()> stop) {
  const std::lock_guard lock(mutex_);
  stop_ = std::move(stop);
}

bool SignalWatch::call_stop() {
  const std::lock_guard lock(mutex_);
  if (!stop_) {
    return false;
  }
  stop_();
  return true;
}

void SignalWatch::watch() {
  bool asked = false;
  while (!ended_) {
    const int number = next_stop_signal(look_every);
    if (number == 0) {
      continue;
    }
    if (asked || !call_stop()) {
      say("orthant: ended by a signal");
      std::_Exit(128 + number);  // as shells say it
    }
    asked = true;
  }
}

}  // namespace orthant
