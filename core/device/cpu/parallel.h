// Parallel loops of the CPU kernels, on OpenMP, with a partition that depends on nothing but (threads, n).
//
// Determinism: a kernel's result never depends on `threads`. Loops whose elements are independent use parallel_for;
// sums go over blocks of a fixed size (block_sum) whose partial results are then added in order.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace orthant {

// One copy of a kernel's loop for one thread and for many: the same bits by construction. Inlined into the operation as
// well, the copy for one thread was not always vectorised.
template <class F>
[[gnu::noinline]] void run_range(F& fn, std::int64_t begin, std::int64_t end) {
  fn(begin, end);
}

// Calls fn(begin, end) on ranges that cover [0, n), at most one per thread and none much shorter than `grain`.
// With one thread (or inside a parallel region) it is a plain call. fn must not throw.
template <class F>
void parallel_for(int threads, std::int64_t n, std::int64_t grain, F&& fn) {
  const std::int64_t parts = std::min<std::int64_t>(threads, n / std::max<std::int64_t>(grain, 1));
  if (parts <= 1 || omp_in_parallel()) {
    if (n > 0) {
      run_range(fn, 0, n);
    }
    return;
  }
#pragma omp parallel num_threads(static_cast <int>(parts))
  {
    const std::int64_t part = omp_get_thread_num(), count = omp_get_num_threads();
    const std::int64_t begin = n * part / count, end = n * (part + 1) / count;
    if (begin < end) {
      run_range(fn, begin, end);
    }
  }
}

// The sum over [0, n) of fn(begin, end), taken over blocks of fixed size and added in order.
template <class F>
double block_sum(int threads, std::int64_t n, F&& fn) {
  constexpr std::int64_t block = 16384;
  const std::int64_t blocks = (n + block - 1) / block;
  std::vector<double> partial(blocks);
  parallel_for(threads, blocks, 2, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t b = first; b < last; ++b) {
      partial[b] = fn(b * block, std::min(n, (b + 1) * block));
    }
  });
  double total = 0;
  for (const double p : partial) {
    total += p;
  }
  return total;
}

// The number of OpenMP threads that libraries called by this thread may use, for the object's life.
class ThreadLimit {
 public:
  explicit ThreadLimit(int threads) : saved_(omp_get_max_threads()) {
    if (saved_ != threads) {
      omp_set_num_threads(threads);
    }
  }
  ~ThreadLimit() {
    if (omp_get_max_threads() != saved_) {
      omp_set_num_threads(saved_);
    }
  }
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

 private:
  int saved_;
};

}  // namespace orthant
