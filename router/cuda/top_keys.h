// A token's greatest logits by keys: one number each that says rank and expert, so that the greatest of two is one
// instruction, and a choice needs neither a second shuffle nor a look at the one before.
//
// A key has the upper bits of a logit's rank, and in the lower ones the expert, the lower expert above. Two logits that
// differ in the lower bits alone it cannot order. That is rare (10 bits at most are lost of a rank's 32), and is found:
// such tokens are to choose by next_best.
#pragma once

#include <cstdint>

#include "router/cuda/token_row.h"

namespace orthant::cuda {

template <class Shape>
struct TopKeys {
  static constexpr std::uint32_t expert_bits = Shape::lanes * Shape::slots - 1;
  std::uint32_t key[Shape::slots];  // falling

  static_assert((expert_bits & (expert_bits + 1)) == 0, "a power of two, of which experts are bits");

  // rank: as rank_row leaves it.
  __device__ explicit TopKeys(const std::uint32_t (&rank)[Shape::slots], int experts) {
#pragma unroll
    for (int slot = 0; slot < Shape::slots; ++slot) {
      const int e = Shape::expert(slot);
      key[slot] = e < experts ? (rank[slot] & ~expert_bits) | (expert_bits - static_cast<std::uint32_t>(e)) : 0;
    }
    sort<1, 1>();
  }

  // Leaves in `expert` choice k of the token, k being this lane's place, if it is below `count`. Whether the keys told
  // all choices apart, and the last one from what follows. The same in each of the token's lanes, which lose their
  // greatest keys. All lanes of the warp call. REQUIRES: count <= Shape::lanes, and that many experts.
  __device__ bool choose(int& expert, int count) {
    bool apart = true;
    std::uint32_t last = 0xFFFFFFFFu, own = 0;
    for (int k = 0; k <= count; ++k) {
      const std::uint32_t greatest = lanes_max<Shape::lanes>(key[0]);
      apart = apart && (greatest ^ last) > expert_bits;
      own = k == Shape::place() ? greatest : own;
      last = greatest;
      if (key[0] == greatest) {  // one lane's, as keys differ
#pragma unroll
        for (int slot = 0; slot + 1 < Shape::slots; ++slot) {
          key[slot] = key[slot + 1];
        }
        key[Shape::slots - 1] = 0;
      }
    }
    expert = static_cast<int>(expert_bits - (own & expert_bits));
    return apart;
  }

 private:
  __device__ void exchange(int i, int j) {
    const std::uint32_t greater = max(key[i], key[j]);
    key[j] = min(key[i], key[j]);
    key[i] = greater;
  }
  // Batcher's merges of odd and even places, which make runs of 2 * size of runs of size; by constant indices.
  template <int size, int step>
  __device__ void sort() {
    if constexpr (size < Shape::slots) {
#pragma unroll
      for (int i = 0; i + step < Shape::slots; ++i) {
        const bool first = i >= step % size && (i - step % size) % (2 * step) < step;
        if (first && i / (2 * size) == (i + step) / (2 * size)) {
          exchange(i, i + step);
        }
      }
      if constexpr (step > 1) {
        sort<size, step / 2>();
      } else {
        sort<2 * size, 2 * size>();
      }
    }
  }
};

}  // namespace orthant::cuda
