// What groups sum, added up over the blocks that have parts of a group.
#pragma once

#include <cstdint>

#include "core/device/cuda/device_math.h"
#include "core/device/cuda/launch.h"

namespace orthant::cuda {

// Tokens of a part of a group.
inline constexpr int block_tokens = 64;

// chosen, share [groups, E] = sums over the `parts` rows of each group in a table [groups, parts, E]. A block takes 32
// experts of a group; each warp adds some of the rows, then the warps' sums are added in order.
static __global__ void __launch_bounds__(256)
    add_parts(std::int32_t* chosen, double* share, const std::int32_t* chosen_parts, const double* share_parts,
              std::int64_t parts, std::int64_t experts) {
  ORTHANT_SHARED(double, shares, [8][32]);
  ORTHANT_SHARED(std::int32_t, counts, [8][32]);
  const std::int64_t group = blockIdx.x, e = static_cast<std::int64_t>(blockIdx.y) * 32 + lane();
  double sum = 0;
  std::int32_t count = 0;
  for (std::int64_t part = warp(); part < parts && e < experts; part += 8) {
    sum += share_parts[(group * parts + part) * experts + e];
    count += chosen == nullptr ? 0 : chosen_parts[(group * parts + part) * experts + e];
  }
  shares[warp()][lane()] = sum;
  counts[warp()][lane()] = count;
  __syncthreads();
  if (warp() == 0 && e < experts) {
    for (int w = 1; w < 8; ++w) {
      sum += shares[w][lane()];
      count += counts[w][lane()];
    }
    share[group * experts + e] = sum;
    if (chosen != nullptr) {
      chosen[group * experts + e] = count;
    }
  }
}

// chosen may be null: it is not added up then.
inline void launch_add_parts(cudaStream_t stream, std::int32_t* chosen, double* share, const std::int32_t* chosen_parts,
                             const double* share_parts, std::int64_t groups, std::int64_t parts, std::int64_t experts) {
  launch(add_parts, Grid{dim3(static_cast<unsigned>(groups), blocks_for(experts, 32)), 256}, stream, chosen, share,
         chosen_parts, share_parts, parts, experts);
}

}  // namespace orthant::cuda
