// The operand whose rows are gathered, on its way to shared memory: the 128 lines of a slice, by the 128 threads of a
// warp group, in copies of 16 bytes that have an address each.
#pragma once

#include <cstdint>

#include "experts/cuda/expert_tiles.h"
#include "experts/cuda/hopper/cluster.h"
#include "experts/cuda/hopper/wgmma_layout.h"

namespace orthant::cuda {

inline constexpr int slice_depth = line_elements;  // steps of k

ORTHANT_HOST_DEVICE inline int slices_of(std::int64_t k) {
  return static_cast<int>((k + slice_depth - 1) / slice_depth);
}

// A thread copies piece `my_piece` of every 16th line, from `my_line` on: eight threads a line, so that they read 128
// bytes side by side.
__device__ inline int my_line() {
  return static_cast<int>(threadIdx.x) % warpgroup_threads / line_pieces;
}
__device__ inline int my_piece() {
  return static_cast<int>(threadIdx.x) % line_pieces;
}
inline constexpr int line_step = warpgroup_threads / line_pieces, my_lines = tile_rows / line_step;

// By rows: the lines are rows of k elements each (a multiple of 8).
struct RowLines {
  const bf16* data;
  int k;
  int row[my_lines];  // of memory, -1: zeros

  // The rows of `tile` of a [.., k].
  template <class Tile>
  __device__ RowLines(const bf16* a, std::int64_t width, const Gather& gather, const Tile& tile)
      : data(a), k(static_cast<int>(width)) {
#pragma unroll
    for (int part = 0; part < my_lines; ++part) {
      const int i = my_line() + part * line_step;
      row[part] = i < tile.rows_left() ? gathered(gather, tile.first_row() + i) : -1;
    }
  }
  __device__ void start(std::uint32_t slice, int k0) const {
    const int column = k0 + my_piece() * 8, width = forgotten(k);
    const std::uint32_t to = slice + at_line(my_line(), my_piece());
#pragma unroll
    for (int part = 0; part < my_lines; ++part) {
      const bool there = row[part] >= 0 && column < k;
      const bf16* const from = data + (there ? std::int64_t{row[part]} * width + column : 0);
      start_copy(to + part * line_step * line_bytes, from, there);
    }
  }
};

// By steps: line 64 b + i holds columns 64 b .. of step i, and step i of k is row first + i, or zeros. Rows are looked
// up one slice ahead.
struct StepLines {
  static constexpr int steps = slice_depth / line_step;
  const bf16* data;
  Gather gather;
  int width, count, first, k;
  int row[steps];

  // `columns` (a multiple of 8; none where negative) from a on, of rows of `width`; k steps.
  __device__ StepLines(const bf16* a, std::int64_t width_, std::int64_t columns, const Gather& gather_, int first_,
                       int steps_of_k)
      : data(a),
        gather(gather_),
        width(static_cast<int>(width_)),
        count(static_cast<int>(columns < tile_rows ? columns : tile_rows)),
        first(first_),
        k(steps_of_k) {
    find(0);
  }
  __device__ void find(int k0) {
#pragma unroll
    for (int i = 0; i < steps; ++i) {
      const int step = k0 + my_line() + i * line_step;
      row[i] = step < k ? gathered(gather, first + step) : -1;
    }
  }
  __device__ void start(std::uint32_t slice, int k0) {
    const std::uint32_t to = slice + at_line(my_line(), my_piece());
#pragma unroll
    for (int part = 0; part < my_lines; ++part) {
      const int from_row = row[part % steps], column = part / steps * line_elements + my_piece() * 8;
      const bool there = from_row >= 0 && column < count;
      const bf16* const from = data + (there ? std::int64_t{from_row} * width + column : 0);
      start_copy(to + part * line_step * line_bytes, from, there);
    }
    find(k0 + slice_depth);
  }
};

}  // namespace orthant::cuda
