#include "parallel/local/wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

namespace orthant {

std::int64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

Patience::Patience(int ranks) {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  // With a core for each rank, spinning answers fastest. Otherwise whoever spins keeps the one it waits for off
  // the core.
  spins_ = ranks <= cores ? 2000 : 0;
  yields_ = ranks <= cores ? 0 : 16;
}

void Patience::came_back(std::int64_t late_ns) {
  constexpr std::int64_t most_late_ns = 100'000;  // a time slice is milliseconds, a turn of the ranks microseconds
  if (late_ns <= most_late_ns) {
    if (++in_time_ == least_rest) {
      rest_ = least_rest;
    }
    return;
  }
  resting_ = rest_;
  rest_ = std::min(2 * rest_, most_rest);
  in_time_ = 0;
}

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void hand_on_cpu() {
  sched_yield();
}

void sleep_on(SharedWord& word, std::uint32_t seen) {
  const timespec limit{0, 50'000'000};
  syscall(SYS_futex, &word.value, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void wake(SharedWord& word) {
  if (word.sleepers.load() != 0) {
    syscall(SYS_futex, &word.value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
}

}  // namespace orthant
