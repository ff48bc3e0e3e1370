// Positions by counting, in a fixed order: ranks of flags and prefix sums over the threads of a warp or a block.
#pragma once

#include <cstdint>

#include "core/device/cuda/device_math.h"

namespace orthant::cuda {

// The lanes below this one, as a mask.
__device__ inline unsigned lower_lanes() {
  return (1u << lane()) - 1;
}

// The sum of x over the lanes up to and with this one. All lanes call.
__device__ inline int warp_inclusive_sum(int x) {
#pragma unroll
  for (int offset = 1; offset < warp_threads; offset *= 2) {
    const int lower = __shfl_up_sync(all_lanes, x, static_cast<unsigned>(offset));
    x += lane() >= offset ? lower : 0;
  }
  return x;
}

struct Ranked {
  int before, total;
};

// The sum over the threads before this one, and over all. All threads of the block call. Two barriers.
__device__ inline Ranked block_sum_before(int x) {
  ORTHANT_SHARED(int, of_warp, [32]);
  const int inclusive = warp_inclusive_sum(x);
  const int warps = static_cast<int>(blockDim.x) / warp_threads;
  __syncthreads();  // an earlier call has been read
  if (lane() == warp_threads - 1) {
    of_warp[warp()] = inclusive;
  }
  __syncthreads();
  const int sums = warp_inclusive_sum(lane() < warps ? of_warp[lane()] : 0);
  const int before = __shfl_sync(all_lanes, sums, warp() == 0 ? 0 : warp() - 1);
  return {(warp() == 0 ? 0 : before) + inclusive - x, __shfl_sync(all_lanes, sums, warp_threads - 1)};
}

// How many threads before this one, and how many of all, have the flag. As block_sum_before.
__device__ inline Ranked block_rank(bool flag) {
  ORTHANT_SHARED(int, of_warp, [32]);
  const unsigned flags = __ballot_sync(all_lanes, flag ? 1 : 0);
  const int warps = static_cast<int>(blockDim.x) / warp_threads;
  __syncthreads();
  if (lane() == 0) {
    of_warp[warp()] = __popc(flags);
  }
  __syncthreads();
  const int sums = warp_inclusive_sum(lane() < warps ? of_warp[lane()] : 0);
  const int before = __shfl_sync(all_lanes, sums, warp() == 0 ? 0 : warp() - 1);
  return {(warp() == 0 ? 0 : before) + __popc(flags & lower_lanes()), __shfl_sync(all_lanes, sums, warp_threads - 1)};
}

}  // namespace orthant::cuda
