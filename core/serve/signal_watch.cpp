#include "core/serve/signal_watch.h"

#include <csignal>
#include <cstdlib>
#include <utility>

#include "core/base/output.h"
#include "core/base/stop_signals.h"

namespace orthant {
namespace {

constexpr double look_every = 0.1;         // seconds
constexpr int interrupted = 128 + SIGINT;  // as shells say it

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

void SignalWatch::on_stop(std::function<void()> stop) {
  stop_ = std::move(stop);
  has_stop_ = true;
}

void SignalWatch::watch() {
  bool asked = false;
  while (!ended_) {
    if (!stop_requested(look_every)) {
      continue;
    }
    if (asked || !has_stop_) {
      say("orthant: ended by a signal");
      std::_Exit(interrupted);
    }
    asked = true;
    stop_();
  }
}

}  // namespace orthant
