// A thread's part of a row that a warp or a block works on together: chunks of 16 bytes of the element type, dealt out
// in turn. What a thread gets depends on its number and the row's length, not on whether chunks can be loaded at once.
#pragma once

#include "core/device/cuda/elements.h"

namespace orthant::cuda {

// Elements [column, column + n) of a row of d, 0 behind its end. whole: chunks are aligned and d is a multiple of n.
template <int n, bool whole, class T>
__device__ inline Vector<T, n> raw_part(const T* row, std::int64_t column, std::int64_t d) {
  Vector<T, n> part;
  if (whole && column < d) {
    part = *reinterpret_cast<const Vector<T, n>*>(row + column);
  } else {
#pragma unroll
    for (int i = 0; i < n; ++i) {
      part.v[i] = !whole && column + i < d ? row[column + i] : from_float<T>(0.0f);
    }
  }
  return part;
}

template <int n, bool whole, class T>
__device__ inline void load_part(float (&to)[n], const T* row, std::int64_t column, std::int64_t d) {
  const Vector<T, n> part = raw_part<n, whole>(row, column, d);
#pragma unroll
  for (int i = 0; i < n; ++i) {
    to[i] = to_float(part.v[i]);
  }
}

template <int n, bool whole, class T>
__device__ inline void store_part(T* row, const float (&from)[n], std::int64_t column, std::int64_t d) {
  if constexpr (whole) {
    if (column < d) {
      store_vector(row + column, from);
    }
  } else {
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (column + i < d) {
        row[column + i] = from_float<T>(from[i]);
      }
    }
  }
}

// Threads of a block, each with up to `chunks` chunks of n elements of a row of d: a multiple of 32.
inline int threads_of_row(std::int64_t d, int n, int chunks) {
  const std::int64_t warps =
      (d + std::int64_t{n} * chunks * warp_threads - 1) / (std::int64_t{n} * chunks * warp_threads);
  return static_cast<int>(std::max<std::int64_t>(warps, 1)) * warp_threads;
}

}  // namespace orthant::cuda
