// Which packed rows each expert has: one expert's after the other's, or `apart` rows set apart for each (0: without
// gaps), GateConfig::rows_per_expert.
#pragma once

#include <cstdint>

#include "router/cuda/scan.h"

namespace orthant::cuda {

// Calls begin(e, row) with the first row of every expert, who has count(e) of them; returns where the rows end. All
// threads of the block call; each calls for some of the experts, count(e) just before begin(e).
template <class C, class F>
__device__ int begin_rows(const C& count, int experts, std::int64_t apart, const F& begin) {
  int sum = 0;
  for (int base = 0; base < experts; base += static_cast<int>(blockDim.x)) {
    const int e = base + static_cast<int>(threadIdx.x);
    const Ranked here = block_sum_before(e < experts ? count(e) : 0);
    if (e < experts) {
      begin(e, apart > 0 ? static_cast<int>(e * apart) : sum + here.before);
    }
    sum += here.total;
  }
  return apart > 0 ? static_cast<int>(experts * apart) : sum;
}

// source = -1 in those of the rows [begin, end) that hold no choice: all of them, or with `apart` those of each expert
// beyond its count(e). The threads of gridDim.x blocks of different blockIdx.x call.
template <class C>
__device__ void clear_sources(std::int32_t* source, const C& count, std::int64_t begin, std::int64_t end,
                              std::int64_t apart) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t r = begin + static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; r < end; r += step) {
    if (apart == 0 || r % apart >= count(static_cast<int>(r / apart))) {
      source[r] = -1;
    }
  }
}

}  // namespace orthant::cuda
