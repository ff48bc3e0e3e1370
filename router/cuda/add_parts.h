// What groups sum, added up over the blocks that have parts of a group.
#pragma once

#include <cstdint>

#include "core/device/cuda/last_block.h"

namespace orthant::cuda {

// Tokens of a part of a group.
inline constexpr int block_tokens = 64;

// What groups sum, and a table of it by parts. With one part a group the table is the sums themselves.
struct GroupParts {
  std::int32_t* chosen;       // [groups, E]; null: not summed
  double* share;              // [groups, E]
  std::int32_t* chosen_part;  // [groups * parts, E]
  double* share_part;         // [groups * parts, E]
  unsigned* counters;         // [groups]
  std::int64_t parts;
  int experts;
};

// The sums over the parts of `group`. All threads of the block call, 8 warps at most. A warp takes 32 experts at a
// time, or some of their parts where there are more warps; those are then added in order.
__device__ inline void add_parts_of_group(const GroupParts& table, std::int64_t group) {
  ORTHANT_SHARED(double, shares, [8][32]);
  ORTHANT_SHARED(std::int32_t, counts, [8][32]);
  const int warps = static_cast<int>(blockDim.x) / warp_threads;
  const int slices = (table.experts + warp_threads - 1) / warp_threads;
  const int helpers = slices < warps ? warps / slices : 1;
  const std::int64_t first = group * table.parts * table.experts;
  const auto store = [&](int e, double sum, std::int32_t count) {
    if (e < table.experts) {
      table.share[group * table.experts + e] = sum;
      if (table.chosen != nullptr) {
        table.chosen[group * table.experts + e] = count;
      }
    }
  };
  for (int unit = warp(); unit < slices * helpers; unit += warps) {
    const int e = unit % slices * warp_threads + lane();
    double sum = 0;
    std::int32_t count = 0;
#pragma unroll 8
    for (std::int64_t part = unit / slices; part < table.parts; part += helpers) {
      if (e < table.experts) {
        sum += table.share_part[first + part * table.experts + e];
        count += table.chosen == nullptr ? 0 : table.chosen_part[first + part * table.experts + e];
      }
    }
    if (helpers == 1) {
      store(e, sum, count);
    } else {
      shares[unit][lane()] = sum;
      counts[unit][lane()] = count;
    }
  }
  __syncthreads();
  if (helpers > 1 && warp() < slices) {
    double sum = 0;
    std::int32_t count = 0;
    for (int unit = warp(); unit < slices * helpers; unit += slices) {
      sum += shares[unit][lane()];
      count += counts[unit][lane()];
    }
    store(warp() * warp_threads + lane(), sum, count);
  }
}

// After a block's part of a group is in the table: the last one of the group adds them up. All threads call. blocks:
// that write parts of this group.
__device__ inline void add_parts_if_last(const GroupParts& table, std::int64_t group, std::int64_t blocks) {
  if (table.parts > 1 && last_block(table.counters + group, blocks)) {
    add_parts_of_group(table, group);
  }
}

}  // namespace orthant::cuda
