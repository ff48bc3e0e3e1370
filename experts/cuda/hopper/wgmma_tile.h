// One 128 x 256 tile of a matrix product of bf16 on Hopper's matrix units. Two warp groups multiply, 64 x 256 each; a
// third copies slices of 64 steps of k, four of them on their way or in use. As each copy of 16 bytes has an address of
// its own, rows may be gathered from anywhere on both sides.
//
// Floors of one slice: 2 x 128 x 256 x 64 FLOP take 1024 cycles of the matrix units. They read 2 KB of A and 8 KB of B
// per m64n256k16 of 128 cycles from shared memory, 80 bytes a cycle, and copies write 48 more, of 128 that it can. From
// L2 come 48 KB, 48 bytes a cycle, of at most 64 a multiprocessor and about 40 for each when all ask. A producer thread
// issues 24 copies.
#pragma once

#include <cstdint>

#include "experts/cuda/expert_tiles.h"
#include "experts/cuda/hopper/wgmma.h"

namespace orthant::cuda {

inline constexpr int wgmma_columns = 256, wgmma_depth = line_elements, wgmma_stages = 4, wgmma_groups = 2;
inline constexpr int producer_threads = warpgroup_threads;
inline constexpr int wgmma_threads = producer_threads + wgmma_groups * warpgroup_threads;
inline constexpr int slice_a_bytes = tile_rows * line_bytes, slice_b_bytes = wgmma_columns * line_bytes;
inline constexpr int stage_bytes = slice_a_bytes + slice_b_bytes;
static_assert(tile_rows == wgmma_groups * 64);

// Slices on their way from the producers to the consumers, through `stages` places in turns. Each side counts them.
class Slices {
 public:
  static constexpr int bytes = wgmma_stages * stage_bytes + 2 * wgmma_stages * 8;

  // memory: address of `bytes` of shared memory, a multiple of 1024.
  __device__ explicit Slices(std::uint32_t memory) : memory_(memory) {}

  // By one thread, before a barrier of the block.
  __device__ void make_barriers() const {
    for (int stage = 0; stage < wgmma_stages; ++stage) {
      make_barrier(full(stage), producer_threads);
      make_barrier(empty(stage), wgmma_groups * warpgroup_threads / warp_threads);  // one arrival a warp
    }
  }

  // Producers: the place of the next slice, free. Then, when the thread has started its copies, passed on.
  __device__ std::uint32_t free_place() const {
    wait_for_phase(empty(stage()), (count_ / wgmma_stages + 1) & 1);
    return place();
  }
  __device__ void pass_on() {
    arrive_after_copies(full(stage()));
    ++count_;
  }

  // Producers, at their end: no thread leaves while what it has started goes on.
  __device__ void wait_until_used() {
    for (int stage = 0; stage < wgmma_stages; ++stage) {
      static_cast<void>(free_place());
      ++count_;
    }
  }

  // Consumers: the next slice, for multiply_later. When products that read it are done, its place is given back, in
  // order.
  __device__ std::uint32_t next_slice() {
    wait_for_phase(full(stage()), count_ / wgmma_stages & 1);
    fence_async_proxy();
    const std::uint32_t slice = place();
    ++count_;
    return slice;
  }
  // ago: 1 for the last slice, 2 for the one before.
  __device__ void give_back(unsigned ago) const {
    if (lane() == 0) {
      arrive(empty((count_ - ago) % wgmma_stages));
    }
  }

 private:
  __device__ unsigned stage() const { return count_ % wgmma_stages; }
  __device__ std::uint32_t place() const { return memory_ + stage() * stage_bytes; }
  __device__ std::uint32_t full(unsigned stage) const { return memory_ + wgmma_stages * stage_bytes + stage * 16; }
  __device__ std::uint32_t empty(unsigned stage) const { return full(stage) + 8; }

  std::uint32_t memory_;
  unsigned count_ = 0;
};

// A producer thread copies piece `my_piece` of every 16th line of a slice, from `my_line` on: eight threads a line, so
// that they read 128 bytes side by side.
__device__ inline int my_line() {
  return static_cast<int>(threadIdx.x) % producer_threads / line_pieces;
}
__device__ inline int my_piece() {
  return static_cast<int>(threadIdx.x) % line_pieces;
}
inline constexpr int line_step = producer_threads / line_pieces;

// An operand by rows, `lines` of them in a tile, of k elements each (a multiple of 8).
template <int lines>
struct RowLines {
  static constexpr int parts = lines / line_step;
  const bf16* data;
  int k;
  int row[parts];  // of memory, -1: zeros

  __device__ void start(std::uint32_t slice, int k0) const {
    const int column = k0 + my_piece() * 8, width = forgotten(k);
    const std::uint32_t to = slice + at_line(my_line(), my_piece());
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      const bool there = row[part] >= 0 && column < k;
      const bf16* const from = data + (there ? std::int64_t{row[part]} * width + column : 0);
      start_copy(to + part * line_step * line_bytes, from, there);
    }
  }
};

// row_of(i): the memory row that is row i of the tile, or -1.
template <int lines, class RowOf>
__device__ inline RowLines<lines> row_lines(const bf16* data, std::int64_t k, RowOf&& row_of) {
  RowLines<lines> operand{data, static_cast<int>(k), {}};
#pragma unroll
  for (int part = 0; part < operand.parts; ++part) {
    operand.row[part] = static_cast<int>(row_of(my_line() + part * line_step));
  }
  return operand;
}

// An operand by steps: the tile's elements are those of `count` columns (a multiple of 8) from data on, step i of k
// being the memory row row_of(i), or zeros if it is -1. Rows are looked up one slice ahead.
template <int lines, class RowOf>
struct StepLines {
  static constexpr int parts = lines / line_step, steps = wgmma_depth / line_step;
  const bf16* data;
  int width, count, k;
  RowOf row_of;
  int row[steps];

  __device__ void find(int k0) {
#pragma unroll
    for (int i = 0; i < steps; ++i) {
      const int step = k0 + my_line() + i * line_step;
      row[i] = step < k ? static_cast<int>(row_of(step)) : -1;
    }
  }
  __device__ void start(std::uint32_t slice, int k0) {
    const std::uint32_t to = slice + at_line(my_line(), my_piece());
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      const int from_row = row[part % steps], column = part / steps * line_elements + my_piece() * 8;
      const bool there = from_row >= 0 && column < count;
      const bf16* const from = data + (there ? std::int64_t{from_row} * width + column : 0);
      start_copy(to + part * line_step * line_bytes, from, there);
    }
    find(k0 + wgmma_depth);
  }
};

template <int lines, class RowOf>
__device__ inline StepLines<lines, RowOf> step_lines(const bf16* data, std::int64_t width, std::int64_t count,
                                                     std::int64_t k, RowOf row_of) {
  StepLines<lines, RowOf> operand{
      data, static_cast<int>(width), static_cast<int>(count < lines ? count : lines), static_cast<int>(k), row_of, {}};
  operand.find(0);
  return operand;
}

__device__ inline int slices_of(std::int64_t k) {
  return static_cast<int>((k + wgmma_depth - 1) / wgmma_depth);
}

// Producers: all slices of a tile. count: of them.
template <class A, class B>
__device__ inline void copy_slices(Slices& slices, A& a, B& b, int count) {
  for (int number = 0; number < count; ++number) {
    const std::uint32_t place = slices.free_place();
    a.start(place, number * wgmma_depth);
    b.start(place + slice_a_bytes, number * wgmma_depth);
    slices.pass_on();
  }
}

// Consumers: sums = this group's 64 rows of the tile, of `count` slices. group: 0 or 1.
template <bool a_by_rows, bool b_by_rows>
__device__ inline void multiply_slices(WgmmaSums& sums, Slices& slices, int group, int count) {
#pragma unroll
  for (int i = 0; i < 128; ++i) {
    sums[i] = 0.0f;
  }
  for (int number = 0; number < count; ++number) {
    const std::uint32_t slice = slices.next_slice();
    const std::uint64_t a = wgmma_operand(slice + group * 64 * line_bytes, a_by_rows);
    const std::uint64_t b = wgmma_operand(slice + slice_a_bytes, b_by_rows);
    hold(sums);
    begin_products();
#pragma unroll
    for (int step = 0; step < wgmma_depth; step += 16) {
      multiply_later<a_by_rows, b_by_rows>(sums, advanced(a, a_by_rows, step), advanced(b, b_by_rows, step));
    }
    end_products();
    wait_for_products<1>();
    hold(sums);
    if (number > 0) {
      slices.give_back(2);
    }
  }
  wait_for_products<0>();
  hold(sums);
  if (count > 0) {
    slices.give_back(1);
  }
}

}  // namespace orthant::cuda
