// Loops for kernels that treat each element by itself: accesses of up to 16 bytes, several in flight.
//
// A body says what is loaded for `n` elements that lie side by side, and what is stored:
//
//   struct Double {  // y = 2 x, f32
//     float* y;
//     const float* x;
//     template <int n>
//     struct Loaded {
//       float x[n];
//     };
//     template <int n>
//     __device__ void load(Loaded<n>& l, std::int64_t row, std::int64_t column) const;
//     template <int n>
//     __device__ void store(const Loaded<n>& l, std::int64_t row, std::int64_t column) const;
//   };
//   for_each_chunk<4, 2>(stream, Double{y, x}, rows, columns, all_aligned<4>(y, x));
#pragma once

#include <orthant/tensor.h>

#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/device_math.h"
#include "core/device/cuda/float_type.h"

namespace orthant::cuda {

// May all be accessed by vectors of n elements?
template <int n, class... T>
bool all_aligned(const T*... p) {
  return ((reinterpret_cast<std::uintptr_t>(p) % vector_alignment<T, n> == 0) && ...);
}

// Elements [0, rows * columns) in chunks of `width` that do not cross rows; `unroll` chunks of a thread are loaded
// before the first is stored. REQUIRES: columns is a multiple of width, or there is one row.
template <int width, int unroll, class Body>
__global__ void chunk_loop(Body body, std::int64_t rows, std::int64_t columns) {
  const std::int64_t per_row = columns / width, chunks = rows * per_row;
  const std::int64_t threads = std::int64_t{gridDim.x} * blockDim.x;
  const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  // The place of chunk `first`, and of a step by all threads: divided once.
  const bool one_row = rows == 1 || per_row == 0;
  std::int64_t row = one_row ? 0 : first / per_row;
  const std::int64_t row_step = one_row ? 0 : threads / per_row;
  std::int64_t place = first - row * per_row;
  const std::int64_t place_step = threads - row_step * per_row;
  for (std::int64_t chunk = first; chunk < chunks; chunk += unroll * threads) {
    typename Body::template Loaded<width> loaded[unroll];
    std::int64_t row_of[unroll], column_of[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      row_of[u] = row;
      column_of[u] = place * width;
      if (chunk + u * threads < chunks) {
        body.load(loaded[u], row_of[u], column_of[u]);
      }
      row += row_step;
      place += place_step;
      if (!one_row && place >= per_row) {
        place -= per_row;
        ++row;
      }
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      if (chunk + u * threads < chunks) {
        body.store(loaded[u], row_of[u], column_of[u]);
      }
    }
  }
  if constexpr (width > 1) {  // what is left of the only row: less than a chunk
    const std::int64_t column = per_row * width + first;
    if (rows == 1 && column < columns) {
      typename Body::template Loaded<1> loaded;
      body.load(loaded, 0, column);
      body.store(loaded, 0, column);
    }
  }
}

// Runs `body` over rows x columns elements. Flat tensors: one row. aligned: whether the body's tensors may be accessed
// in chunks of `width` (all_aligned).
template <int width, int unroll, class Body>
void for_each_chunk(const CudaStream& stream, const Body& body, std::int64_t rows, std::int64_t columns, bool aligned) {
  if (rows == 0 || columns == 0) {
    return;
  }
  constexpr int threads = 256;
  const std::int64_t most = 16 * std::int64_t{stream.cuda().multiprocessors()};
  if (aligned && (rows == 1 || columns % width == 0)) {
    const std::int64_t chunks = std::max<std::int64_t>(rows * (columns / width), 1);
    launch(chunk_loop<width, unroll, Body>, Grid{blocks_for(chunks, threads * unroll, most), threads}, stream.handle(),
           body, rows, columns);
  } else {
    launch(chunk_loop<1, unroll, Body>, Grid{blocks_for(rows * columns, threads * unroll, most), threads},
           stream.handle(), body, rows, columns);
  }
}

}  // namespace orthant::cuda
