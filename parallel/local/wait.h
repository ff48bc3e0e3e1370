// Waiting on words that ranks share: spin a little where there is a core for each rank, else hand the core on a few
// times to the ranks that share it, then sleep.
//
// Handing the core on (sched_yield) costs a fraction of a sleep and a wake-up, as long as only ranks share the cores.
// Other work gets a whole time slice each time. So a word says when it was stored: who finds that it was long ago has
// given its core to others, and only sleeps from then on for many waits.
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
  std::atomic<std::int64_t> stored_ns;  // when the value was stored, by now_ns()
};

std::int64_t now_ns();  // one clock for all processes of the machine

// How one stream of a rank waits. Not thread-safe.
class Patience {
 public:
  // What suits `ranks` ranks on the cores that this process may use.
  explicit Patience(int ranks);

  // How often to look at a word with a pause between, and then how often with the core handed on, before sleeping.
  int spins() const { return spins_; }
  int yields() {
    if (resting_ > 0) {
      --resting_;
      return 0;
    }
    return yields_;
  }
  // The core was handed on, and what was waited for had been stored so long before.
  void came_back(std::int64_t late_ns);

 private:
  static constexpr int least_rest = 1024, most_rest = 1 << 17;
  int spins_, yields_;
  int resting_ = 0;  // waits to come without yields
  int rest_ = least_rest;
  int in_time_ = 0;  // returns since the last late one
};

// Whether counter `value` has come to `target`; right across wrap-around.
inline bool reached(std::uint32_t value, std::uint32_t target) {
  return static_cast<std::int32_t>(value - target) >= 0;
}

void pause_cpu();
void hand_on_cpu();
// Sleeps until woken, but not if word.value is no longer `seen`, and at most 50 ms.
void sleep_on(SharedWord& word, std::uint32_t seen);
// Wakes all who sleep on `word`. Call after the store that they wait for.
void wake(SharedWord& word);

// Returns when ready() is true. stored(): when that came to be, by now_ns(). check() is called after each sleep, and
// throws to give up.
template <class Ready, class Stored, class Check>
void wait_until(SharedWord& word, Patience& patience, Ready ready, Stored stored, Check check) {
  if (ready()) {
    return;
  }
  for (int i = 0; i < patience.spins(); ++i) {
    pause_cpu();
    if (ready()) {
      return;
    }
  }
  for (int left = patience.yields(); left > 0; --left) {
    hand_on_cpu();
    if (ready()) {
      patience.came_back(now_ns() - stored());
      return;
    }
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
