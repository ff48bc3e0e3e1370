// One 128 x 128 tile of a matrix product of bf16 on the matrix units of Ampere and later, by 8 warps of 64 x 32 each.
// Slices of 32 steps of k travel to shared memory by asynchronous copies, several on their way at once; as each copy of
// 16 bytes has an address of its own, rows may be gathered from anywhere.
//
// Operands lie in one of two ways: by rows, each of the tile's 128 rows (of A; columns of B) contiguous in k; or by
// steps, each step of k holding 128 contiguous elements. 16-byte pieces are swizzled so that neither copies nor
// load_matrices meet in a bank.
#pragma once

#include <cstdint>

#include "core/device/cuda/tensor_core.h"

namespace orthant::cuda {

inline constexpr int mma_edge = 128, mma_depth = 32, mma_threads = 256;
inline constexpr int mma_slice = mma_edge * mma_depth;  // elements of one operand in one stage
// stages: mma_stages (choose_tile.h)
constexpr std::size_t mma_stage_bytes(int stages) {
  return 2 * static_cast<std::size_t>(stages * mma_slice) * sizeof(bf16);
}

// Where element 8 * piece of a row of the tile lies in a slice kept by rows.
__device__ inline int at_row(int row, int piece) {
  return row * mma_depth + ((piece ^ (row >> 1 & 3)) << 3);
}
// Where elements 8 * piece .. of step k lie in a slice kept by steps.
__device__ inline int at_step(int k, int piece) {
  return k * mma_edge + ((piece ^ (k & 7)) << 3);
}

// This warp's 64 x 32 part of the tile: [m16 tile][n8 tile][c of multiply_matrices].
using MmaSums = float[4][4][4];

// This warp's place in the tile.
__device__ inline int mma_row() {
  return warp() / 4 * 64;
}
__device__ inline int mma_column() {
  return warp() % 4 * 32;
}

inline constexpr int mma_parts = mma_slice / 8 / mma_threads;  // copies of a thread for one slice

// An operand by rows of k elements, a multiple of 8.
struct ByRows {
  static constexpr bool by_rows = true;
  const bf16* begin[mma_parts];  // of the rows that this thread copies; null: zeros
  std::int64_t k;

  __device__ void start(bf16* slice, std::int64_t k0) const {
    const int piece = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int part = 0; part < mma_parts; ++part) {
      const bool there = begin[part] != nullptr && k0 + piece * 8 < k;
      start_copy(slice + at_row(row_of(part), piece), there ? begin[part] + k0 + piece * 8 : nullptr);
    }
  }
  __device__ static int row_of(int part) {
    return static_cast<int>(threadIdx.x) / 4 + part * (mma_threads / 4);
  }
};

// row(i): the first of k elements of the tile's row i, or null for zeros.
template <class Row>
__device__ inline ByRows by_rows(std::int64_t k, Row&& row) {
  ByRows operand;
  operand.k = k;
#pragma unroll
  for (int part = 0; part < mma_parts; ++part) {
    operand.begin[part] = row(ByRows::row_of(part));
  }
  return operand;
}

// An operand by steps. step(k): the first of the tile's elements at step k, or null for zeros. count: how many of the
// 128 there are, a multiple of 8. k: how many steps.
template <class Step>
struct BySteps {
  static constexpr bool by_rows = false;
  Step step;
  std::int64_t k, count;

  __device__ void start(bf16* slice, std::int64_t k0) const {
#pragma unroll
    for (int part = 0; part < mma_parts; ++part) {
      const int piece = static_cast<int>(threadIdx.x) + part * mma_threads, inner = piece / 16, column = piece % 16;
      const bf16* const begin = k0 + inner < k && column * 8 < count ? step(k0 + inner) : nullptr;
      start_copy(slice + at_step(inner, column), begin != nullptr ? begin + column * 8 : nullptr);
    }
  }
};

template <class Step>
__device__ inline BySteps<Step> by_steps(std::int64_t k, std::int64_t count, Step step) {
  return {step, k, count};
}

// The fragments of A for the m16 tile whose first row is `row`, at step k of the slice; of B for two n8 tiles.
template <bool by_rows>
__device__ inline void load_a(std::uint32_t (&a)[4], const bf16* slice, int row, int k) {
  if constexpr (by_rows) {
    load_matrices<false>(a, slice + at_row(row + lane() % 16, k / 8 + lane() / 16));
  } else {
    load_matrices<true>(a, slice + at_step(k + lane() / 16 * 8 + lane() % 8, row / 8 + lane() / 8 % 2));
  }
}
template <bool by_rows>
__device__ inline void load_b(std::uint32_t (&b)[4], const bf16* slice, int column, int k) {
  if constexpr (by_rows) {
    load_matrices<false>(b, slice + at_row(column + lane() / 16 * 8 + lane() % 8, k / 8 + lane() / 8 % 2));
  } else {
    load_matrices<true>(b, slice + at_step(k + lane() / 8 % 2 * 8 + lane() % 8, column / 8 + lane() / 16));
  }
}

// sums = the tile of A B over k steps. memory: mma_stage_bytes(stages) of shared memory, aligned to 128 bytes, free for
// other use afterwards. All threads of the block call.
template <int stages, class A, class B>
__device__ inline void multiply_mma_tile(MmaSums& sums, const A& a, const B& b, std::int64_t k, bf16* memory) {
  const std::int64_t slices = (k + mma_depth - 1) / mma_depth;
  const auto slice_of = [&](std::int64_t number, int operand) {
    return memory + (static_cast<int>(number % stages) * 2 + operand) * mma_slice;
  };
  const auto start = [&](std::int64_t number) {
    if (number < slices) {
      a.start(slice_of(number, 0), number * mma_depth);
      b.start(slice_of(number, 1), number * mma_depth);
    }
    end_copies();  // an empty group at the end, so that groups can be counted
  };
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        sums[i][j][c] = 0.0f;
      }
    }
  }
#pragma unroll
  for (int number = 0; number < stages - 1; ++number) {
    start(number);
  }
  for (std::int64_t number = 0; number < slices; ++number) {
    wait_for_copies<stages - 2>();
    __syncthreads();  // the slice is there for all; and nobody reads the one before it, whose place is filled next
    start(number + stages - 1);
    const bf16* const slice_a = slice_of(number, 0);
    const bf16* const slice_b = slice_of(number, 1);
#pragma unroll
    for (int step = 0; step < mma_depth; step += 16) {
      std::uint32_t of_a[4][4], of_b[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        load_a<A::by_rows>(of_a[i], slice_a, mma_row() + i * 16, step);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        load_b<B::by_rows>(of_b[j], slice_b, mma_column() + j * 16, step);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const std::uint32_t column[2] = {of_b[j / 2][j % 2 * 2], of_b[j / 2][j % 2 * 2 + 1]};
          multiply_matrices(sums[i][j], of_a[i], column);
        }
      }
    }
  }
  wait_for_copies<0>();
  __syncthreads();
}

// Calls fn(row, column, low, high) for this thread's pairs of neighbouring elements of m16 tiles `first` and the next.
template <int first, class F>
__device__ inline void for_each_pair(const MmaSums& sums, F&& fn) {
#pragma unroll
  for (int i = first; i < first + 2; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        fn(mma_row() + i * 16 + lane() / 4 + half * 8, mma_column() + j * 8 + lane() % 4 * 2, sums[i][j][half * 2],
           sums[i][j][half * 2 + 1]);
      }
    }
  }
}

}  // namespace orthant::cuda
