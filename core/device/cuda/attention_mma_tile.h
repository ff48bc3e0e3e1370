// Attention on the matrix units: what its kernels have in common. A block of 4 warps has a tile of "own" rows (queries,
// or keys in the backward for keys) in shared memory and meets tiles of "other" rows. A warp has R times 16 own rows,
// all others and all channels of them; so scores become weights in its registers, and no two warps add.
//
// Tiles lie in shared memory as [rows, D + 8] bf16, D the head's channels rounded up to 32, 64, 96, 128 or 256: a row
// is an odd number of 16-byte pieces, so 8 rows read at one column lie in different banks.
//
// Which elements a lane holds is tensor_core.h's: of each 16 x 8 tile of scores or results those of rows
// lane / 4 and 8 further on, at columns 2 (lane % 4) and one further on.
#pragma once

#include "core/device/cuda/attention_geometry.h"
#include "core/device/cuda/tensor_core.h"

namespace orthant::cuda::attention_mma {

using namespace attention_geometry;

inline constexpr int warps = 4, threads = warps * warp_threads;
inline constexpr float log2_e = 1.4426950408889634f;

template <int D>
inline constexpr int stride_of = D + 8;

template <int D>
constexpr std::size_t tile_bytes(int rows) {
  return static_cast<std::size_t>(rows) * stride_of<D> * sizeof(bf16);
}

// Of a warp. Types inside a type, because the front end of CUDA 12.4 cannot read an alias of an array whose sides are
// constants of a kernel that is a template.
template <int R, int N>
struct Registers {
  // R x 16 own rows by N columns: [m16 tile][n8 tile][c of multiply_matrices].
  using Sums = float[R][N / 8][4];
  // The same as the first factor of a product over N: [m16 tile][step of 16][a of multiply_matrices].
  using Weights = std::uint32_t[R][N / 16][4];
};
template <int R, int N>
using Sums = typename Registers<R, N>::Sums;
template <int R, int N>
using Weights = typename Registers<R, N>::Weights;

// Of this warp's own rows, as the block counts them, the one of m16 tile i, and of the lower (0) or upper half (1).
template <int R>
__device__ inline int own_row(int i, int half) {
  return (warp() * R + i) * 16 + half * 8 + lane() / 4;
}
// The first of this lane's two columns of n8 tile n.
__device__ inline int column_of(int n) {
  return n * 8 + lane() % 4 * 2;
}

template <int R, int N>
__device__ void clear(Sums<R, N>& sums) {
#pragma unroll
  for (int i = 0; i < R; ++i) {
#pragma unroll
    for (int n = 0; n < N / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        sums[i][n][e] = 0.0f;
      }
    }
  }
}

// Starts to copy `rows` rows of a head to a tile; zeros from row `valid` on and from channel c on.
template <int D, int rows>
__device__ void start_tile(bf16* tile, const bf16* from, std::int64_t stride, std::int64_t valid, int c) {
  constexpr int pieces = D / 8;
  static_assert(rows * pieces % threads == 0);
#pragma unroll 2  // addresses take registers, and nobody waits for a copy here
  for (int part = 0; part < rows * pieces / threads; ++part) {
    const int at = static_cast<int>(threadIdx.x) + part * threads, row = at / pieces, column = at % pieces * 8;
    start_copy(tile + row * stride_of<D> + column, row < valid && column < c ? from + row * stride + column : nullptr);
  }
}

// scores = this warp's own rows times the other rows, over the D channels of both.
template <int R, int N, int D>
__device__ void multiply_rows(Sums<R, N>& scores, const bf16* own_tile, const bf16* other_tile) {
  clear<R, N>(scores);
  const bf16* const a = own_tile + (warp() * R * 16 + lane() % 16) * stride_of<D> + lane() / 16 * 8;
  const bf16* const b = other_tile + (lane() / 16 * 8 + lane() % 8) * stride_of<D> + lane() / 8 % 2 * 8;
#pragma unroll 2  // more would load further ahead than there are registers for
  for (int e = 0; e < D; e += 16) {
    std::uint32_t of_own[R][4];
#pragma unroll
    for (int i = 0; i < R; ++i) {
      load_matrices<false>(of_own[i], a + i * 16 * stride_of<D> + e);
    }
#pragma unroll
    for (int n = 0; n < N / 16; ++n) {
      std::uint32_t of_other[4];
      load_matrices<false>(of_other, b + n * 16 * stride_of<D> + e);
#pragma unroll
      for (int i = 0; i < R; ++i) {
        multiply_matrices(scores[i][2 * n], of_own[i], {of_other[0], of_other[1]});
        multiply_matrices(scores[i][2 * n + 1], of_own[i], {of_other[2], of_other[3]});
      }
    }
  }
}

__device__ inline std::uint32_t two_bf16(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  std::uint32_t bits;
  std::memcpy(&bits, &both, sizeof bits);
  return bits;
}

// Rounds to bf16. A lane holds the same elements of both.
template <int R, int N>
__device__ void round_weights(Weights<R, N>& weights, const Sums<R, N>& values) {
#pragma unroll
  for (int i = 0; i < R; ++i) {
#pragma unroll
    for (int n = 0; n < N / 8; ++n) {
      weights[i][n / 2][n % 2 * 2] = two_bf16(values[i][n][0], values[i][n][1]);
      weights[i][n / 2][n % 2 * 2 + 1] = two_bf16(values[i][n][2], values[i][n][3]);
    }
  }
}

// sums += weights times the other rows' channels from `first` on, C of them.
template <int R, int N, int C, int D>
__device__ void add_product(Sums<R, C>& sums, const Weights<R, N>& weights, const bf16* other_tile, int first = 0) {
  const bf16* const b = other_tile + lane() % 16 * stride_of<D> + lane() / 16 * 8 + first;
#pragma unroll
  for (int k = 0; k < N / 16; ++k) {
#pragma unroll
    for (int n = 0; n < C / 16; ++n) {
      std::uint32_t of_other[4];
      load_matrices<true>(of_other, b + k * 16 * stride_of<D> + n * 16);
#pragma unroll
      for (int i = 0; i < R; ++i) {
        multiply_matrices(sums[i][2 * n], weights[i][k], {of_other[0], of_other[1]});
        multiply_matrices(sums[i][2 * n + 1], weights[i][k], {of_other[2], of_other[3]});
      }
    }
  }
}

// Minus infinity where a query does not see a key: those of the tiles at i0 and j0.
template <int R, int N>
__device__ void hide_unseen(Sums<R, N>& scores, const Geometry& g, std::int64_t sequence, std::int64_t i0,
                            std::int64_t j0) {
  Sight sight[R][2];
#pragma unroll
  for (int i = 0; i < R; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sight[i][half] = sight_of(g, sequence, i0 + own_row<R>(i, half));
    }
  }
#pragma unroll
  for (int n = 0; n < N / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const std::int32_t place = place_of(g, j0 + column_of(n) + e);
#pragma unroll
      for (int i = 0; i < R; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& score = scores[i][n][half * 2 + e];
          score = sees(sight[i][half], place) ? score : -INFINITY;
        }
      }
    }
  }
}

// This lane's channels of one row, half of an m16 tile, to memory: = factor * sums, or += for `add`. From channel c on
// nothing. REQUIRES: c even, rows aligned to two elements.
template <int C, class T>
__device__ void store_row(T* to, const float (&sums)[C / 8][4], int half, float factor, int c, bool add) {
#pragma unroll
  for (int n = 0; n < C / 8; ++n) {
    if (column_of(n) < c) {
      auto* const place = reinterpret_cast<Vector<T, 2>*>(to + column_of(n));
      Vector<T, 2> two = add ? *place : Vector<T, 2>{};
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        two.v[e] = from_float<T>((add ? to_float(two.v[e]) : 0.0f) + factor * sums[n][half * 2 + e]);
      }
      *place = two;
    }
  }
}

// Calls fn with the D for these channels, as std::integral_constant. REQUIRES: c <= most_channels.
template <class F>
void with_channels(int c, F&& fn) {
  if (c <= 32) {
    fn(std::integral_constant<int, 32>{});
  } else if (c <= 64) {
    fn(std::integral_constant<int, 64>{});
  } else if (c <= 96) {
    fn(std::integral_constant<int, 96>{});
  } else if (c <= 128) {
    fn(std::integral_constant<int, 128>{});
  } else {
    fn(std::integral_constant<int, 256>{});
  }
}

// Of the tiles of keys that a tile of queries meets, one after the other. All lanes of the warp call.
class KeyWalk {
 public:
  // queries: `count` from i0 on.
  __device__ KeyWalk(const Geometry& g, std::int64_t sequence, std::int64_t i0, int count, int tile)
      : g_(g),
        any_(sight_of_tile(g, sequence, i0, count)),
        every_(common_sight_of_tile(g, sequence, i0, count)),
        tile_(tile),
        range_(keys_of(g, any_, tile)),
        at_(range_.begin) {
    find();
  }
  __device__ bool there() const { return at_ < range_.end; }
  // The first key of the tile.
  __device__ std::int64_t at() const { return at_; }
  // Whether each query sees each key of the tile.
  __device__ bool all_seen() const {
    return at_ + tile_ <= g_.keys && every_.low <= places_.low && places_.high <= every_.high;
  }
  __device__ void next() {
    at_ += tile_;
    find();
  }

 private:
  __device__ void find() {
    for (; at_ < range_.end; at_ += tile_) {
      places_ = places_of_tile(g_, at_, tile_);
      if (meet(any_, places_)) {
        return;
      }
    }
  }

  const Geometry& g_;
  const Sight any_, every_;
  const int tile_;
  const KeyRange range_;
  std::int64_t at_;
  Sight places_{};
};

}  // namespace orthant::cuda::attention_mma
