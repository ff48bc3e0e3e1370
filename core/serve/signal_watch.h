// SignalWatch: a thread that waits for the signals that end a server.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace orthant {

class SignalWatch {
 public:
  // Blocks the signals of stop_signals.h in this thread and in those that it starts. The first one calls what on_stop
  // was given, the second ends the process; without on_stop the first does.
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  void on_stop(std::function<void()> stop);

 private:
  void watch();

  std::function<void()> stop_;
  std::atomic<bool> has_stop_ = false, ended_ = false;
  std::thread thread_;
};

}  // namespace orthant
