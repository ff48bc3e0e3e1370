// Which packed rows each expert has: one expert's after the other's, or `apart` rows set apart for each (0: without
// gaps), GateConfig::rows_per_expert.
#pragma once

#include <cstdint>

#include "router/cuda/scan.h"

namespace orthant::cuda {

// Calls begin(e, row) with the first row of every expert, from the experts' counts [E]; returns where the rows end. All
// threads of the block call, each calls for some of the experts.
template <class F>
__device__ int begin_rows(const std::int32_t* count, int experts, std::int64_t apart, const F& begin) {
  int sum = 0;
  for (int base = 0; base < experts; base += static_cast<int>(blockDim.x)) {
    const int e = base + static_cast<int>(threadIdx.x);
    const Ranked here = block_sum_before(e < experts ? count[e] : 0);
    if (e < experts) {
      begin(e, apart > 0 ? static_cast<int>(e * apart) : sum + here.before);
    }
    sum += here.total;
  }
  return apart > 0 ? static_cast<int>(experts * apart) : sum;
}

// source [room] = -1 in the rows that hold no choice, `end` being what begin_rows returned. The threads of gridDim.x
// blocks of different blockIdx.x call.
__device__ inline void clear_sources(std::int32_t* source, const std::int32_t* count, int end, std::int64_t room,
                                     std::int64_t apart) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  const std::int64_t first = apart > 0 ? 0 : end;
  for (std::int64_t r = first + static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; r < room; r += step) {
    if (apart == 0 || r % apart >= count[r / apart]) {
      source[r] = -1;
    }
  }
}

}  // namespace orthant::cuda
