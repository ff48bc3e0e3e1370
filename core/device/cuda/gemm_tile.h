// One 64 x 64 tile of a matrix product by a block of 64 threads, on the ordinary fp32 units: each thread keeps 8 x 8
// sums and meets slices of 16 steps of k in shared memory, the next slice on its way meanwhile. Sums run over k in
// order, so an element is the same whatever tile it falls into. Used where no library does better, and as its oracle.
#pragma once

#include <cstdint>

#include "core/device/cuda/device_math.h"
#include "core/device/cuda/launch.h"

namespace orthant::cuda {

inline constexpr int tile_edge = 64, tile_depth = 16, tile_threads = 64;

// A matrix by its elements (i, k): i is a row of A or a column of B, k the dimension that is summed over.
template <class T>
struct TileOperand {
  const T* data;
  std::int64_t stride;  // elements between rows of memory
  bool k_contiguous;    // (i, k) at i * stride + k; else at k * stride + i
  std::int64_t count;   // of i
};

template <class T>
struct alignas(4 * sizeof(T)) Four {
  T v[4];
};

// n of the four elements at `from`, zero beyond. whole: all four may be read at once.
template <class T>
__device__ inline void load_four(float* to, const T* from, std::int64_t n, bool whole) {
  if (n >= 4 && whole) {
    const Four<T> loaded = *reinterpret_cast<const Four<T>*>(from);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[i] = to_float(loaded.v[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[i] = i < n ? to_float(from[i]) : 0.0f;
    }
  }
}

// [k][i / 4] of a slice; the 17th column keeps threads that write one k apart in different banks.
using TileSlice = Four<float>[tile_depth][tile_edge / 4 + 1];

// This thread's 16 elements of the slice (i0 .., k0 ..), as four runs of four in the direction of memory.
template <class T>
__device__ inline void fetch_slice(float (&to)[16], const TileOperand<T>& x, std::int64_t i0, std::int64_t k0,
                                   std::int64_t k, bool whole) {
  const int t = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    if (x.k_contiguous) {
      const std::int64_t at = i0 + t / 4 + part * 16, from = k0 + t % 4 * 4;
      load_four(to + part * 4, x.data + at * x.stride + from, at < x.count ? k - from : 0, whole);
    } else {
      const std::int64_t at = k0 + t / 16 + part * 4, from = i0 + t % 16 * 4;
      load_four(to + part * 4, x.data + at * x.stride + from, at < k ? x.count - from : 0, whole);
    }
  }
}

__device__ inline void keep_slice(TileSlice& slice, const float (&from)[16], bool k_contiguous) {
  const int t = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    if (k_contiguous) {
      const int i = t / 4 + part * 16;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        slice[t % 4 * 4 + j][i / 4].v[i % 4] = from[part * 4 + j];
      }
    } else {
      slice[t / 16 + part * 4][t % 16] = {from[part * 4], from[part * 4 + 1], from[part * 4 + 2], from[part * 4 + 3]};
    }
  }
}

// c[i, j] (+)= sum over k of a(i, k) b(j, k), for i in [i0, i0 + 64) and j in [j0, j0 + 64) as far as they exist; c has
// `stride` elements between rows. All threads of the block call, with equal arguments.
template <class In, class Out>
__device__ void multiply_tile(const TileOperand<In>& a, const TileOperand<In>& b, std::int64_t k, std::int64_t i0,
                              std::int64_t j0, Out* c, std::int64_t stride, bool accumulate) {
  ORTHANT_SHARED(TileSlice, slices_a, [2]);
  ORTHANT_SHARED(TileSlice, slices_b, [2]);
  const auto readable_by_four = [](const TileOperand<In>& x) {
    return reinterpret_cast<std::uintptr_t>(x.data) % sizeof(Four<In>) == 0 && x.stride % 4 == 0;
  };
  const bool whole_a = readable_by_four(a), whole_b = readable_by_four(b);
  const int row = static_cast<int>(threadIdx.x) / 8, column = static_cast<int>(threadIdx.x) % 8;
  float sum[8][8] = {};
  float next_a[16], next_b[16];
  if (k > 0) {
    fetch_slice(next_a, a, i0, 0, k, whole_a);
    fetch_slice(next_b, b, j0, 0, k, whole_b);
  }
  int buffer = 0;
  for (std::int64_t k0 = 0; k0 < k; k0 += tile_depth) {
    // The other buffer may still be read: this one was last read two slices ago, before the barrier in between.
    keep_slice(slices_a[buffer], next_a, a.k_contiguous);
    keep_slice(slices_b[buffer], next_b, b.k_contiguous);
    __syncthreads();
    if (k0 + tile_depth < k) {
      fetch_slice(next_a, a, i0, k0 + tile_depth, k, whole_a);
      fetch_slice(next_b, b, j0, k0 + tile_depth, k, whole_b);
    }
#pragma unroll
    for (int step = 0; step < tile_depth; ++step) {
      // Rows row * 4 .. + 3 and 32 further on, and columns alike: threads side by side read side by side.
      const Four<float> a_low = slices_a[buffer][step][row], a_high = slices_a[buffer][step][row + 8];
      const Four<float> b_low = slices_b[buffer][step][column], b_high = slices_b[buffer][step][column + 8];
#pragma unroll
      for (int r = 0; r < 8; ++r) {
        const float x = r < 4 ? a_low.v[r % 4] : a_high.v[r % 4];
#pragma unroll
        for (int s = 0; s < 8; ++s) {
          sum[r][s] += x * (s < 4 ? b_low.v[s % 4] : b_high.v[s % 4]);
        }
      }
    }
    buffer ^= 1;
  }
  const bool whole_c = reinterpret_cast<std::uintptr_t>(c) % sizeof(Four<Out>) == 0 && stride % 4 == 0;
#pragma unroll
  for (int r = 0; r < 8; ++r) {
    const std::int64_t i = i0 + row * 4 + r % 4 + r / 4 * 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int64_t j = j0 + column * 4 + half * 32, n = i < a.count ? b.count - j : 0;
      Out* const to = c + i * stride + j;
      float old[4] = {};
      if (accumulate) {
        load_four(old, to, n, whole_c);
      }
      Four<Out> result;
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        result.v[s] = from_float<Out>(old[s] + sum[r][half * 4 + s]);
      }
      if (n >= 4 && whole_c) {
        *reinterpret_cast<Four<Out>*>(to) = result;
      } else {
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          if (s < n) {
            to[s] = result.v[s];
          }
        }
      }
    }
  }
}

}  // namespace orthant::cuda
