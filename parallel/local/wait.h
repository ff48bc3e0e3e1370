// Waiting on words that ranks share: spin a little, give the core away a little, then sleep.
//
// A sleeper counts itself before its last look and a waker stores before it looks at the count, all sequentially
// consistent, so that no wake-up is lost; sleeps are bounded all the same, because a failure of the world wakes
// nobody and is noticed by looking.
#pragma once

#include <atomic>
#include <cstdint>

namespace orthant {

// A word that others sleep on. In shared memory: zero means nothing happened and nobody sleeps.
struct alignas(64) SharedWord {
  std::atomic<std::uint32_t> value;
  std::atomic<std::uint32_t> sleepers;
};

struct WaitPolicy {
  int spins = 0;   // looks at the word with a pause between
  int yields = 0;  // looks with sched_yield between
};

// What suits `ranks` ranks on the cores that this process may use.
WaitPolicy wait_policy(int ranks);

// Whether counter `value` has come to `target`; right across wrap-around.
inline bool reached(std::uint32_t value, std::uint32_t target) {
  return static_cast<std::int32_t>(value - target) >= 0;
}

void pause_cpu();
void yield_cpu();
// Sleeps until woken, but not if word.value is no longer `seen`, and at most 50 ms.
void sleep_on(SharedWord& word, std::uint32_t seen);
// Wakes all who sleep on `word`. Call after the store that they wait for.
void wake(SharedWord& word);

// Returns when ready() is true. check() is called before each yield and after each sleep, and throws to give up;
// its argument is true after a sleep.
template <class Ready, class Check>
void wait_until(SharedWord& word, const WaitPolicy& policy, Ready ready, Check check) {
  for (int i = 0; i < policy.spins; ++i) {
    if (ready()) {
      return;
    }
    pause_cpu();
  }
  for (int i = 0; i < policy.yields; ++i) {
    if (ready()) {
      return;
    }
    check(false);
    yield_cpu();
  }
  while (!ready()) {
    word.sleepers.fetch_add(1);
    const std::uint32_t seen = word.value.load();
    if (!ready()) {
      sleep_on(word, seen);
    }
    word.sleepers.fetch_sub(1);
    if (ready()) {
      return;
    }
    check(true);
  }
}

}  // namespace orthant
