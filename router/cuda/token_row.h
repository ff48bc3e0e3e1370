// A token's logits in registers, spread over some lanes of a warp: how many lanes, and what they do together.
#pragma once

#include <cstdint>

#include "core/device/cuda/device_math.h"

namespace orthant::cuda {

// A token has `lanes` lanes, a power of two, and each of them `slots` experts: runs of 4, so that a load is 16 bytes
// and the lanes' loads follow one another. A warp holds 32 / lanes tokens.
template <int lanes_, int slots_>
struct RowShape {
  static constexpr int lanes = lanes_, slots = slots_, tokens_per_warp = warp_threads / lanes_;

  // This thread's place among the lanes of its token, and its token's among those of the warp.
  __device__ static int place() { return lane() % lanes; }
  __device__ static int token_of_warp() { return lane() / lanes; }
  // The expert in a slot of this lane; may be above the last.
  __device__ static int expert(int slot) { return (slot / 4 * lanes + place()) * 4 + slot % 4; }
};

// A longer row does not fit in a warp's registers: a warp walks along it in memory.
inline constexpr std::int64_t most_experts_in_registers = 1024;

// Calls fn(RowShape) with the shape for so many experts. Few lanes a token make few shuffles.
// REQUIRES: experts <= most_experts_in_registers.
template <class F>
void with_row_shape(std::int64_t experts, F&& fn) {
  if (experts <= 8) {
    fn(RowShape<2, 4>{});
  } else if (experts <= 16) {
    fn(RowShape<4, 4>{});
  } else if (experts <= 32) {
    fn(RowShape<8, 4>{});
  } else if (experts <= 64) {
    fn(RowShape<8, 8>{});
  } else if (experts <= 128) {
    fn(RowShape<16, 8>{});
  } else if (experts <= 256) {
    fn(RowShape<32, 8>{});
  } else if (experts <= 512) {
    fn(RowShape<32, 16>{});
  } else {
    fn(RowShape<32, 32>{});
  }
}

// to[slot] = row[expert(slot)], 0 above the last expert. T: float or int32. vectors: rows begin at multiples of 16
// bytes.
template <class Shape, class T>
__device__ inline void load_row(T (&to)[Shape::slots], const T* row, int experts, bool vectors) {
#pragma unroll
  for (int slot = 0; slot < Shape::slots; slot += 4) {
    const int e = Shape::expert(slot);
    if (vectors) {
      Vector<T> loaded{};
      if (e < experts) {
        loaded = *reinterpret_cast<const Vector<T>*>(row + e);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        to[slot + i] = loaded.v[i];
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        to[slot + i] = e + i < experts ? row[e + i] : T{};
      }
    }
  }
}

template <class Shape>
__device__ inline void store_row(float* row, const float (&from)[Shape::slots], int experts, bool vectors) {
#pragma unroll
  for (int slot = 0; slot < Shape::slots; slot += 4) {
    const int e = Shape::expert(slot);
    if (vectors) {
      if (e < experts) {
        Vector<float> stored;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          stored.v[i] = from[slot + i];
        }
        *reinterpret_cast<Vector<float>*>(row + e) = stored;
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (e + i < experts) {
          row[e + i] = from[slot + i];
        }
      }
    }
  }
}

// The sum over the `lanes` lanes of a token, the same bits in each. All lanes of the warp call.
template <int lanes, class T>
__device__ inline T lanes_sum(T x) {
#pragma unroll
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(all_lanes, x, offset);
  }
  return x;
}

// The greatest over the lanes of a token. All lanes of the warp call.
template <int lanes>
__device__ inline std::uint32_t lanes_max(std::uint32_t x) {
  if constexpr (lanes == warp_threads) {
    return __reduce_max_sync(all_lanes, x);
  } else {
#pragma unroll
    for (int offset = lanes / 2; offset > 0; offset /= 2) {
      x = max(x, __shfl_xor_sync(all_lanes, x, offset));
    }
    return x;
  }
}

__device__ inline float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

// Whole numbers in the order of floats: 0 is -0, a NaN is below every number and above 0, which is nothing at all.
__device__ inline std::uint32_t rank_of(float x) {
  const std::uint32_t bits = __float_as_uint(x + 0.0f);
  const std::uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return x != x ? 1u : ordered;
}
__device__ inline float from_rank(std::uint32_t rank) {
  return __uint_as_float((rank & 0x80000000u) != 0 ? rank & 0x7FFFFFFFu : ~rank);
}

// One expert of a token, and its logit's rank.
struct Best {
  std::uint32_t rank = 0xFFFFFFFFu;  // above every logit
  int expert = -1;
};

// `one` if it comes after `last` in the order of next_best and before `best`, else `best`.
__device__ inline Best better_after(Best last, Best one, Best best) {
  const bool follows = one.rank < last.rank || (one.rank == last.rank && one.expert > last.expert);
  return follows && one.rank > best.rank ? one : best;
}

// Of a token's lanes the best, the lower expert of equal ones.
template <int lanes>
__device__ inline Best best_of_lanes(Best best) {
#pragma unroll
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
    const std::uint32_t other = __shfl_xor_sync(all_lanes, best.rank, offset);
    const int expert = __shfl_xor_sync(all_lanes, best.expert, offset);
    if (other > best.rank || (other == best.rank && expert < best.expert)) {
      best = {other, expert};
    }
  }
  return best;
}

// The expert that follows `last` in the order of falling logits, ties to the lower expert. The same in each of the
// token's lanes. All lanes of the warp call. rank[slot] = rank_of(logit), 0 above the last expert.
template <class Shape>
__device__ inline Best next_best(const std::uint32_t (&rank)[Shape::slots], Best last) {
  Best best{0, 0x7FFFFFFF};
#pragma unroll
  for (int slot = 0; slot < Shape::slots; ++slot) {  // experts rise: of equal ones the first stays
    best = better_after(last, {rank[slot], Shape::expert(slot)}, best);
  }
  return best_of_lanes<Shape::lanes>(best);
}

// The same of a row in memory, of any length, whose token has the whole warp.
__device__ inline Best next_best(const float* logits, int experts, Best last) {
  Best best{0, 0x7FFFFFFF};
  for (int e = lane(); e < experts; e += warp_threads) {
    best = better_after(last, {rank_of(logits[e]), e}, best);
  }
  return best_of_lanes<warp_threads>(best);
}

template <class Shape>
__device__ inline void rank_row(std::uint32_t (&rank)[Shape::slots], const float (&logits)[Shape::slots], int experts) {
#pragma unroll
  for (int slot = 0; slot < Shape::slots; ++slot) {
    rank[slot] = Shape::expert(slot) < experts ? rank_of(logits[slot]) : 0;
  }
}

}  // namespace orthant::cuda
