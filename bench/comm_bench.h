// What both sides of the comparison measure, and how: the local communicator (comm_bench.cpp) and MPI itself
// (comm_mpi_peer.cpp) time the same calls and print the same lines.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <vector>

namespace orthant::bench {

inline constexpr std::size_t sizes[] = {1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20};

// Times `call` on `bytes` bytes; all ranks make the same calls, `print` on one of them. The median of a few batches.
inline void measure(const char* name, std::size_t bytes, bool print, const std::function<void()>& call) {
  const int batch = bytes <= (16u << 10) ? 300 : bytes <= (256u << 10) ? 40 : bytes <= (1u << 20) ? 12 : 3;
  for (int i = 0; i < std::max(1, batch / 4); ++i) {
    call();
  }
  std::vector<double> us;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < batch; ++i) {
      call();
    }
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    us.push_back(time.count() / batch);
  }
  std::sort(us.begin(), us.end());
  if (print) {
    std::printf("%s %zu %.2f\n", name, bytes, us[us.size() / 2]);
    std::fflush(stdout);
  }
}

}  // namespace orthant::bench
