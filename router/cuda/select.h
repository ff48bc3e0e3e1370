// The greatest so many of a list, by a block: the threshold from counting digits (radix selection), ties by place.
#pragma once

#include <cstdint>

#include "core/device/cuda/device_math.h"
#include "router/cuda/scan.h"

namespace orthant::cuda {

// An item is taken if its priority is above `value`, or equal to it and fewer than `ties` equal ones come before.
struct Threshold {
  std::uint32_t value;
  int ties;
};

// Of items [0, n): the threshold that takes `count` of them. priority(i): uint32. All threads of the block call, 256 of
// them or more. REQUIRES: 0 < count <= n.
template <class F>
__device__ Threshold find_threshold(int n, int count, const F& priority) {
  ORTHANT_SHARED(int, bins, [256]);
  ORTHANT_SHARED(int, found, [2]);  // the digit, and how many items are above it
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  std::uint32_t value = 0;
  int needed = count;
  for (int shift = 24; shift >= 0; shift -= 8) {
    __syncthreads();  // what an earlier digit left has been read
    if (thread < 256) {
      bins[thread] = 0;
    }
    __syncthreads();
    const std::uint32_t above = shift == 24 ? 0 : 0xFFFFFFFFu << (shift + 8);  // the digits that are known
    for (int i = thread; i < n; i += threads) {
      const std::uint32_t p = priority(i);
      if ((p & above) == value) {
        atomicAdd(bins + (p >> shift & 255u), 1);
      }
    }
    __syncthreads();
    const int here = thread < 256 ? bins[255 - thread] : 0;  // the greatest digit first
    const int before = block_sum_before(here).before;
    if (before < needed && needed <= before + here) {
      found[0] = 255 - thread;
      found[1] = before;
    }
    __syncthreads();
    value |= static_cast<std::uint32_t>(found[0]) << shift;
    needed -= found[1];
  }
  return {value, needed};
}

// Calls visit(i, taken, before) for every item in [0, n), `before` being how many items before i are taken. All threads
// of the block call.
template <class F, class V>
__device__ void visit_taken(int n, Threshold threshold, const F& priority, const V& visit) {
  int ties = 0, taken_before = 0;
  for (int base = 0; base < n; base += static_cast<int>(blockDim.x)) {
    const int i = base + static_cast<int>(threadIdx.x);
    const std::uint32_t p = i < n ? priority(i) : 0;
    const bool tie = i < n && p == threshold.value;
    const Ranked of_ties = block_rank(tie);
    const bool taken = (i < n && p > threshold.value) || (tie && ties + of_ties.before < threshold.ties);
    const Ranked of_taken = block_rank(taken);
    if (i < n) {
      visit(i, taken, taken_before + of_taken.before);
    }
    ties += of_ties.total;
    taken_before += of_taken.total;
  }
}

}  // namespace orthant::cuda
