// Small device functions that most kernels want: fp32 arithmetic on f32 and bf16 elements, vectors of them, and sums
// over a warp or a block in a fixed order.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "core/device/cuda/launch.h"

namespace orthant::cuda {

using bf16 = __nv_bfloat16;

inline constexpr int warp_threads = 32;
inline constexpr unsigned all_lanes = 0xFFFFFFFFu;

__device__ inline float to_float(float x) {
  return x;
}
__device__ inline float to_float(bf16 x) {
  return __bfloat162float(x);
}

// Rounds to nearest, ties to even.
template <class T>
__device__ T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline bf16 from_float<bf16>(float x) {
  return __float2bfloat16_rn(x);
}

// Elements of 16 bytes, the widest load or store: 4 floats, 8 bf16.
template <class T>
inline constexpr int vector_elements = 16 / static_cast<int>(sizeof(T));

template <class T, int n>
inline constexpr std::size_t vector_alignment = n * sizeof(T) < 16 ? n * sizeof(T) : 16;

// n elements: one access of 2 to 16 bytes, or several of 16.
template <class T, int n = vector_elements<T>>
struct alignas(vector_alignment<T, n>) Vector {
  T v[n];
};

// REQUIRES of both: p is aligned to vector_alignment.
template <int n, class T>
__device__ inline void load_vector(float (&to)[n], const T* p) {
  const Vector<T, n> loaded = *reinterpret_cast<const Vector<T, n>*>(p);
#pragma unroll
  for (int i = 0; i < n; ++i) {
    to[i] = to_float(loaded.v[i]);
  }
}

template <int n, class T>
__device__ inline void store_vector(T* p, const float (&from)[n]) {
  Vector<T, n> stored;
#pragma unroll
  for (int i = 0; i < n; ++i) {
    stored.v[i] = from_float<T>(from[i]);
  }
  *reinterpret_cast<Vector<T, n>*>(p) = stored;
}

// Host or device: may `p` be accessed in vectors of 16 bytes, when rows of `columns` elements follow one another?
template <class T>
__host__ __device__ inline bool vectorizable(const T* p, std::int64_t columns) {
  return reinterpret_cast<std::uintptr_t>(p) % 16 == 0 && columns % vector_elements<T> == 0;
}

// This thread's place in its (one-dimensional) block.
__device__ inline int lane() {
  return static_cast<int>(threadIdx.x % warp_threads);
}
__device__ inline int warp() {
  return static_cast<int>(threadIdx.x / warp_threads);
}

// Sum or maximum over the 32 lanes, the same bits in each lane. All lanes of the warp call. T: float, double, int, ...
template <class T>
__device__ inline T warp_sum(T x) {
#pragma unroll
  for (int offset = warp_threads / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(all_lanes, x, offset);
  }
  return x;
}

// A NaN counts only where every lane has one (fmaxf).
template <class T>
__device__ inline T warp_max(T x) {
#pragma unroll
  for (int offset = warp_threads / 2; offset > 0; offset /= 2) {
    const T other = __shfl_xor_sync(all_lanes, x, offset);
    if constexpr (std::is_same_v<T, float>) {
      x = fmaxf(x, other);
    } else {
      x = x < other ? other : x;
    }
  }
  return x;
}

// The same over a block of any size, the same bits in each thread. All threads of the block call. Two barriers.
template <class T>
__device__ inline T block_sum(T x) {
  ORTHANT_SHARED(T, of_warp, [32]);
  x = warp_sum(x);
  const int warps = static_cast<int>(blockDim.x) / warp_threads;
  __syncthreads();  // an earlier call has been read
  if (lane() == 0) {
    of_warp[warp()] = x;
  }
  __syncthreads();
  return warp_sum(lane() < warps ? of_warp[lane()] : T{});
}

template <class T>
__device__ inline T block_max(T x) {
  ORTHANT_SHARED(T, of_warp, [32]);
  x = warp_max(x);
  const int warps = static_cast<int>(blockDim.x) / warp_threads;
  __syncthreads();
  if (lane() == 0) {
    of_warp[warp()] = x;
  }
  __syncthreads();
  return warp_max(of_warp[lane() < warps ? lane() : 0]);
}

}  // namespace orthant::cuda
