// What a signal does to a server, and that it meets no part of it that is gone.
#include "apps/serve/signal_watch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "tests/support/run_supervisor.h"

namespace orthant::serve_test {
namespace {

using launch_test::eventually;
using testing::ExitedWithCode;

// Each in a process of its own (EXPECT_EXIT), since it blocks signals and may end it.
void default_signals() {
  for (const int number : {SIGINT, SIGTERM}) {
    signal(number, SIG_DFL);
  }
}

void a_signal_after_the_stop(int number) {
  default_signals();
  SignalWatch watch;
  {
    const SignalWatch::Stop stop(watch, [] { std::_Exit(1); });
  }
  kill(getpid(), number);
  std::this_thread::sleep_for(std::chrono::seconds(20));
  std::_Exit(2);
}

TEST(SignalWatch, WithoutAStopASignalEndsTheProcess) {
  EXPECT_EXIT(a_signal_after_the_stop(SIGTERM), ExitedWithCode(128 + SIGTERM), "ended by a signal");
  EXPECT_EXIT(a_signal_after_the_stop(SIGINT), ExitedWithCode(128 + SIGINT), "ended by a signal");
}

void a_stop_that_ends_in_its_call() {
  default_signals();
  SignalWatch watch;
  std::atomic<bool> begun = false, ended = false;
  {
    const SignalWatch::Stop stop(watch, [&] {
      begun = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      ended = true;
    });
    kill(getpid(), SIGTERM);
    if (!eventually([&] { return begun.load(); })) {
      std::_Exit(1);
    }
  }
  std::_Exit(ended ? 0 : 2);
}

TEST(SignalWatch, AStopOutlivesItsCall) {
  EXPECT_EXIT(a_stop_that_ends_in_its_call(), ExitedWithCode(0), "");
}

}  // namespace
}  // namespace orthant::serve_test
