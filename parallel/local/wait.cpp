#include "parallel/local/wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace orthant {

int spins_for(int ranks) {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  // With a core for each rank, spinning answers fastest. Otherwise whoever spins keeps the one it waits for off
  // the core.
  return ranks <= cores ? 2000 : 0;
}

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
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
