// Waiting on words that ranks share: spin a little where there is a core for each rank, then sleep.
//
// There is no sched_yield between: on a busy machine it hands the core to whatever else computes for a whole time
// slice (measured at 8 ranks on 2 cores: milliseconds instead of tens of microseconds), a futex wakes at once.
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

// How often to look at the word, with a pause between, before sleeping: what suits `ranks` ranks on the cores that
// this process may use.
int spins_for(int ranks);

// Whether counter `value` has come to `target`; right across wrap-around.
inline bool reached(std::uint32_t value, std::uint32_t target) {
  return static_cast<std::int32_t>(value - target) >= 0;
}

void pause_cpu();
// Sleeps until woken, but not if word.value is no longer `seen`, and at most 50 ms.
void sleep_on(SharedWord& word, std::uint32_t seen);
// Wakes all who sleep on `word`. Call after the store that they wait for.
void wake(SharedWord& word);

// Returns when ready() is true. check() is called after each sleep, and throws to give up.
template <class Ready, class Check>
void wait_until(SharedWord& word, int spins, Ready ready, Check check) {
  for (int i = 0; i < spins; ++i) {
    if (ready()) {
      return;
    }
    pause_cpu();
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
    check();
  }
}

}  // namespace orthant
