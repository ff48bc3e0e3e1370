// SignalWatch: a thread that waits for the signals that end a server.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

namespace orthant {

class SignalWatch {
 public:
  // Blocks the signals of stop_signals.h in this thread and in those that it starts. The first one calls what a Stop
  // was given, the second ends the process with 128 + its number; while there is no Stop, the first does.
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  // What the first signal does, as long as this lives: one at a time. When it ends, a call of `stop` has ended too.
  class Stop {
   public:
    Stop(SignalWatch& watch, std::function<void()> stop);
    ~Stop();
    Stop(const Stop&) = delete;
    Stop& operator=(const Stop&) = delete;

   private:
    SignalWatch& watch_;
  };

 private:
  void watch();
  void set_stop(std::function<void()> stop);
  bool call_stop();  // false: there is none

  std::mutex mutex_;
  std::function<void()> stop_;  // under mutex_, its call too
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

}  // namespace orthant
