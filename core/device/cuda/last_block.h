// Sums of blocks, added up by the block that comes last: one launch where a second kernel would be another.
//
// Which block is the last one differs from run to run. What it adds, and in which order, does not.
#pragma once

#include "core/device/cuda/device_math.h"

namespace orthant::cuda {

// Whether this block is the last of `blocks` that call with this counter, which is 0 before the first and after the
// last (CudaStream::counters). All threads of the block call; the last block sees what all of them wrote before. Two
// barriers. REQUIRES: what the others wrote is not read through pointers that promise it to be constant (__restrict__).
__device__ inline bool last_block(unsigned* counter, std::int64_t blocks) {
  ORTHANT_SHARED(unsigned, before, [1]);
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();  // what this block wrote, then the count
    before[0] = atomicAdd(counter, 1u);
    if (before[0] + 1 == static_cast<unsigned>(blocks)) {
      *counter = 0;
    }
    __threadfence();  // the count, then what the others wrote
  }
  __syncthreads();
  return before[0] + 1 == static_cast<unsigned>(blocks);
}

}  // namespace orthant::cuda
