// Attention by tiles in shared memory, fp32 arithmetic: what its kernels have in common. A block of 256 threads, as 16
// by 16, has a tile of "own" rows (queries, or keys in the backward for keys), meets one tile of "other" rows after the
// other, and keeps its results in registers; so every sum is one thread's, in a fixed order.
//
// Thread (y, x) has own rows R y .. R y + R - 1. Of the scores it has the other rows x, x + 16, ...; of the results the
// channels 4 x .. 4 x + 3 of each 64. A row belongs to one half of one warp, so weights pass from scores to results
// through shared memory within a warp.
//
// Tiles lie in shared memory as [rows, D + 4] floats, D the head's channels rounded up to 64, 128 or 256: with 4 floats
// more, 8 rows read at one column lie in different banks.
#pragma once

#include <type_traits>

#include "core/device/cuda/attention_geometry.h"
#include "core/device/cuda/float_type.h"

namespace orthant::cuda::attention_tile {

using namespace attention_geometry;

inline constexpr int threads = 256;
inline constexpr int side = 16;  // of the block's threads

template <int D>
inline constexpr int stride_of = D + 4;

template <int D>
constexpr std::size_t tile_bytes(int rows) {
  return static_cast<std::size_t>(rows) * stride_of<D> * sizeof(float);
}

__device__ inline int own() {
  return static_cast<int>(threadIdx.x) / side;
}
__device__ inline int other() {
  return static_cast<int>(threadIdx.x) % side;
}

template <int N, int D, class T>
__device__ void load_tile_by(float* tile, const T* from, std::int64_t stride, std::int64_t valid, int c, int rows,
                             float scale) {
  constexpr int steps = D / N;
#pragma unroll 4
  for (int step = static_cast<int>(threadIdx.x); step < rows * steps; step += threads) {
    const int row = step / steps, column = step % steps * N;
    float value[N] = {};
    if (row < valid && column < c) {
      load_vector(value, from + row * stride + column);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      tile[row * stride_of<D> + column + i] = scale * value[i];
    }
  }
}

// `rows` rows of a head, times `scale`, to a tile; zeros from row `valid` on and from channel c on.
template <int D, class T>
__device__ void load_tile(float* tile, const T* from, std::int64_t stride, std::int64_t valid, int rows,
                          const Geometry& g, float scale) {
  if (g.vectors) {
    load_tile_by<vector_elements<T>, D>(tile, from, stride, valid, g.c, rows, scale);
  } else {
    load_tile_by<1, D>(tile, from, stride, valid, g.c, rows, scale);
  }
}

__device__ inline float4 load4(const float* p) {
  return *reinterpret_cast<const float4*>(p);
}

// score[i][j] = own row R y + i times other row x + 16 j.
template <int R, int C, int D>
__device__ void multiply_rows(float (&score)[R][C], const float* own_tile, const float* other_tile, int c) {
  const float* a = own_tile + own() * R * stride_of<D>;
  const float* b = other_tile + other() * stride_of<D>;
#pragma unroll
  for (int i = 0; i < R; ++i) {
#pragma unroll
    for (int j = 0; j < C; ++j) {
      score[i][j] = 0.0f;
    }
  }
#pragma unroll 1
  for (int e = 0; e < c; e += 4) {
    float4 x[R], y[C];
#pragma unroll
    for (int i = 0; i < R; ++i) {
      x[i] = load4(a + i * stride_of<D> + e);
    }
#pragma unroll
    for (int j = 0; j < C; ++j) {
      y[j] = load4(b + j * side * stride_of<D> + e);
    }
#pragma unroll
    for (int i = 0; i < R; ++i) {
#pragma unroll
      for (int j = 0; j < C; ++j) {
        score[i][j] += x[i].x * y[j].x;
        score[i][j] += x[i].y * y[j].y;
        score[i][j] += x[i].z * y[j].z;
        score[i][j] += x[i].w * y[j].w;
      }
    }
  }
}

// This thread's results: R own rows, 4 channels of each 64. A type inside a type, as attention_mma_tile.h says.
template <int R, int D>
struct Registers {
  using Sums = float[R][D / 64][4];
};
template <int R, int D>
using Sums = typename Registers<R, D>::Sums;

template <int R, int D>
__device__ void clear(Sums<R, D>& sums) {
#pragma unroll
  for (int i = 0; i < R; ++i) {
#pragma unroll
    for (int m = 0; m < D / 64; ++m) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        sums[i][m][e] = 0.0f;
      }
    }
  }
}

// Weights of a tile: [16 R, 16 C + 4].
template <int C>
inline constexpr int weight_stride = side* C + 4;

template <int R, int C>
__device__ void store_weights(float* weights, const float (&values)[R][C]) {
#pragma unroll
  for (int i = 0; i < R; ++i) {
#pragma unroll
    for (int j = 0; j < C; ++j) {
      weights[(own() * R + i) * weight_stride<C> + other() + side * j] = values[i][j];
    }
  }
}

// sums[i] += sum over other rows j of weight[R y + i][j] * other row j.
template <int R, int C, int D>
__device__ void add_product(Sums<R, D>& sums, const float* weights, const float* other_tile) {
  const float* w = weights + own() * R * weight_stride<C>;
  const float* b = other_tile + other() * 4;
#pragma unroll 1
  for (int j = 0; j < side * C; j += 4) {
    float4 x[R];
#pragma unroll
    for (int i = 0; i < R; ++i) {
      x[i] = load4(w + i * weight_stride<C> + j);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int m = 0; m < D / 64; ++m) {
        const float4 y = load4(b + (j + k) * stride_of<D> + 64 * m);
#pragma unroll
        for (int i = 0; i < R; ++i) {
          const float weight = k == 0 ? x[i].x : k == 1 ? x[i].y : k == 2 ? x[i].z : x[i].w;
          sums[i][m][0] += weight * y.x;
          sums[i][m][1] += weight * y.y;
          sums[i][m][2] += weight * y.z;
          sums[i][m][3] += weight * y.w;
        }
      }
    }
  }
}

// Channels of one row from sums to memory: = factor * sums, or += for `add`.
template <int D, class T>
__device__ void store_row(T* to, const float (&sums)[D / 64][4], float factor, const Geometry& g, bool add) {
#pragma unroll
  for (int m = 0; m < D / 64; ++m) {
    const int column = other() * 4 + 64 * m;
    if (g.vectors && column < g.c) {
      auto* const place = reinterpret_cast<Vector<T, 4>*>(to + column);
      Vector<T, 4> four = add ? *place : Vector<T, 4>{};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        four.v[e] = from_float<T>((add ? to_float(four.v[e]) : 0.0f) + factor * sums[m][e]);
      }
      *place = four;
    } else if (!g.vectors) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (column + e < g.c) {
          to[column + e] = from_float<T>((add ? to_float(to[column + e]) : 0.0f) + factor * sums[m][e]);
        }
      }
    }
  }
}

// Calls fn(std::bool_constant<small>{}): whether a kernel takes its small tiles, which every GPU has room for, or those
// of large_bytes.
template <std::size_t large_bytes, class F>
void with_tile_size(const CudaDevice& device, F&& fn) {
  if constexpr (large_bytes > least_shared_memory) {
    if (large_bytes > device.shared_memory()) {
      fn(std::true_type{});
      return;
    }
  }
  fn(std::false_type{});
}

// Calls fn with the D for these channels, as std::integral_constant. REQUIRES: c <= most_channels.
template <class F>
void with_channels(int c, F&& fn) {
  if (c <= 64) {
    fn(std::integral_constant<int, 64>{});
  } else if (c <= 128) {
    fn(std::integral_constant<int, 128>{});
  } else {
    fn(std::integral_constant<int, 256>{});
  }
}

// Calls fn(T{}, O{}) for inputs of `in` and outputs of `out`: in itself, or f32.
template <class F>
void with_types(DType in, DType out, F&& fn) {
  with_float_type(in, [&](auto type) {
    using T = decltype(type);
    if (out == in) {
      fn(T{}, T{});
    } else {
      fn(T{}, float{});
    }
  });
}

}  // namespace orthant::cuda::attention_tile
