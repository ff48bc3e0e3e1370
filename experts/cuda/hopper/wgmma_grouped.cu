// The experts' products on Hopper's own matrix instructions (wgmma_tile.h): a block for each multiprocessor takes tiles
// in turns; while two warp groups store one, the third has the next one's first slices on their way.
// Floors: wgmma_tile.h, and experts/README.md.
#include "core/device/cuda/cuda_stream.h"
#include "experts/cuda/expert_tiles.h"
#include "experts/cuda/hopper/wgmma_tile.h"
#include "experts/cuda/tile_epilogues.h"

namespace orthant::cuda {
namespace {

// Registers of a producer's thread; and of a consumer's: what is left of those that a block has when it starts (with
// more it would wait for ever). nn needs them where its tiles end, the others where rows are kept for copies.
constexpr int producer_registers(GroupedLayout layout) {
  return layout == GroupedLayout::nn ? 88 : 104;
}
constexpr int consumer_registers(GroupedLayout layout) {
  constexpr int at_start = wgmma_threads * (65536 / wgmma_threads / 8 * 8);
  return (at_start - producer_threads * producer_registers(layout)) / (wgmma_threads - producer_threads) / 8 * 8;
}

// 16 x 64 of a tile, by one warp, as floats in shared memory: a part (tile_epilogues.h). Pieces of eight are swizzled.
struct WarpPart {
  static constexpr int rows = 16, columns = 64, floats = rows * columns;
  float* staged;

  __device__ float* at(int row, int piece) const { return staged + row * columns + ((piece ^ (row & 7)) << 3); }
  template <int pieces, int batch, class Load, class Use>
  __device__ void for_each_piece(Load&& load, Use&& use) const {
    divide_pieces<rows, pieces, warp_threads, batch>(lane(), load, use);
  }
};

constexpr int staged_bytes = wgmma_groups * 4 * WarpPart::floats * static_cast<int>(sizeof(float));
constexpr int alignment_slack = 1024 - 128;  // dynamic shared memory is aligned to 128
constexpr std::size_t shared_bytes = stage_bytes * wgmma_stages + staged_bytes + 128 + alignment_slack;
static_assert(Slices::bytes <= stage_bytes * wgmma_stages + 128 && shared_bytes <= 227 * 1024);

// This block's shared memory: parts of the warps, slices from a multiple of 1024 on.
struct Shared {
  std::uint32_t slices;
  float* staged;
};
__device__ Shared shared_memory() {
  unsigned char* const memory = dynamic_shared<unsigned char>();
  const std::uint32_t begin = shared_address(memory), aligned = (begin + 1023) / 1024 * 1024;
  return {aligned, reinterpret_cast<float*>(memory + (aligned - begin) + stage_bytes * wgmma_stages + 128)};
}

__device__ bool producer() {
  return threadIdx.x < producer_threads;
}
// Of a consumer: its warp group, and its warp among all consumers.
__device__ int consumer_group() {
  return warp() / 4 - 1;
}
__device__ int consumer_warp() {
  return warp() - 4;
}

// Calls take(part, row, column) for each part of this warp's rows of the tile: where it begins in the tile.
template <class Take>
__device__ void for_each_part(const WgmmaSums& sums, float* staged, Take&& take) {
  const WarpPart part{staged + consumer_warp() * WarpPart::floats};
#pragma unroll 1
  for (int number = 0; number < wgmma_columns / WarpPart::columns; ++number) {
    __syncwarp();  // the part before has been read
#pragma unroll
    for (int known = 0; known < wgmma_columns / WarpPart::columns; ++known) {  // registers have no computed index
      if (known == number) {
#pragma unroll
        for (int pair = 0; pair < WarpPart::columns / 4; ++pair) {
          const int i = known * WarpPart::columns / 2 + pair * 2;
          *reinterpret_cast<float2*>(part.at(lane() / 4 + pair % 2 * 8, pair / 2) + lane() % 4 * 2) =
              make_float2(sums[i], sums[i + 1]);
        }
      }
    }
    __syncwarp();
    take(part, consumer_warp() * WarpPart::rows, number * WarpPart::columns);
  }
}

// The barriers of a block's slices, made.
__device__ Slices make_slices(const Shared& shared) {
  const Slices slices(shared.slices);
  if (threadIdx.x == 0) {
    slices.make_barriers();
  }
  __syncthreads();
  return slices;
}

__host__ __device__ int across_of(std::int64_t columns) {
  return static_cast<int>(parts(columns, wgmma_columns));
}

template <GroupedLayout layout, class Epilogue>
__device__ void produce_rows(const GroupedProblem& p, const Gather& gather, const Tile& tile, Slices& slices) {
  const int column = static_cast<int>(tile.column) * wgmma_columns;
  const int rows = static_cast<int>(tile.rows_left()), first = static_cast<int>(tile.first_row());
  const bf16* const b = static_cast<const bf16*>(p.b) + tile.expert * p.n * p.k;
  RowLines<tile_rows> left = row_lines<tile_rows>(static_cast<const bf16*>(p.a), p.k,
                                                  [&](int i) { return i < rows ? gathered(gather, first + i) : -1; });
  if constexpr (layout == GroupedLayout::nt) {
    RowLines<wgmma_columns> right =
        row_lines<wgmma_columns>(b, p.k, [&](int i) { return Epilogue::row_of_b(p, column + i); });
    copy_slices(slices, left, right, slices_of(p.k));
  } else {
    auto right = step_lines<wgmma_columns>(b + column, p.n, p.n - column, p.k, [](int step) { return step; });
    copy_slices(slices, left, right, slices_of(p.k));
  }
}

template <GroupedLayout layout, class Epilogue>
__global__ __launch_bounds__(wgmma_threads, 1) void rows_wgmma(GroupedProblem p, Gather gather, Epilogue epilogue) {
  const Shared shared = shared_memory();
  Slices slices = make_slices(shared);
  const int across = across_of(Epilogue::across(p));
  const auto next = [&](int number) { return find_tile(p, number, across); };
  if (producer()) {
    give_registers<producer_registers(layout)>();
    int number = static_cast<int>(blockIdx.x);
    for (Tile tile = next(number); tile.expert >= 0; tile = next(number += static_cast<int>(gridDim.x))) {
      produce_rows<layout, Epilogue>(p, gather, tile, slices);
    }
    slices.wait_until_used();
  } else {
    take_registers<consumer_registers(layout)>();
    int number = static_cast<int>(blockIdx.x);
    for (Tile tile = next(number); tile.expert >= 0; tile = next(number += static_cast<int>(gridDim.x))) {
      WgmmaSums sums;
      multiply_slices<true, layout == GroupedLayout::nt>(sums, slices, consumer_group(), slices_of(p.k));
      for_each_part(sums, shared.staged, [&](const WarpPart& part, int row, int column) {
        epilogue(part, p,
                 {tile.first_row() + row, tile.rows_left() - row, tile.column * wgmma_columns + std::int64_t{column}});
      });
    }
  }
}

// A tile of one expert's c [m, n], from (i0, j0) on.
struct WeightTile {
  std::int64_t expert, i0, j0;
  RowRange rows;
};
__device__ WeightTile weight_tile(const GroupedProblem& p, int number, int down, int across) {
  const std::int64_t expert = number / (down * across);
  const TilePlace place = tile_place(number % (down * across), down, across);
  return {expert, std::int64_t{place.row} * tile_rows, std::int64_t{place.column} * wgmma_columns, rows_of(p, expert)};
}

// tn. Both operands by steps, which are the expert's rows.
__global__ __launch_bounds__(wgmma_threads, 1) void weights_wgmma(GroupedProblem p, Gather gather_a, Gather gather_b) {
  const Shared shared = shared_memory();
  Slices slices = make_slices(shared);
  const int across = across_of(p.n), down = static_cast<int>(parts(p.m, tile_rows));
  const int tiles = static_cast<int>(p.experts) * down * across;
  if (producer()) {
    give_registers<producer_registers(GroupedLayout::tn)>();
    for (int number = static_cast<int>(blockIdx.x); number < tiles; number += static_cast<int>(gridDim.x)) {
      const WeightTile tile = weight_tile(p, number, down, across);
      const std::int64_t count = tile.rows.end - tile.rows.begin;
      auto left =
          step_lines<tile_rows>(static_cast<const bf16*>(p.a) + tile.i0, p.m, p.m - tile.i0, count,
                                [&](int step) { return gathered(gather_a, static_cast<int>(tile.rows.begin) + step); });
      auto right = step_lines<wgmma_columns>(
          static_cast<const bf16*>(p.b) + tile.j0, p.n, p.n - tile.j0, count,
          [&](int step) { return gathered(gather_b, static_cast<int>(tile.rows.begin) + step); });
      copy_slices(slices, left, right, slices_of(count));
    }
    slices.wait_until_used();
  } else {
    take_registers<consumer_registers(GroupedLayout::tn)>();
    for (int number = static_cast<int>(blockIdx.x); number < tiles; number += static_cast<int>(gridDim.x)) {
      const WeightTile tile = weight_tile(p, number, down, across);
      const int count = slices_of(tile.rows.end - tile.rows.begin);
      if (count == 0 && p.beta != 0) {
        continue;
      }
      WgmmaSums sums;
      multiply_slices<false, false>(sums, slices, consumer_group(), count);
      for_each_part(sums, shared.staged, [&](const WarpPart& part, int row, int column) {
        const std::int64_t i = tile.i0 + row, j = tile.j0 + column;
        store_part(part, static_cast<float*>(p.c) + (tile.expert * p.m + i) * p.n + j, p.n, p.m - i, p.n - j,
                   p.beta != 0);
      });
    }
  }
}

struct Wgmma {
  template <GroupedLayout layout, class Epilogue>
  static void rows(const CudaStream& stream, const GroupedProblem& p, Gather gather, const Epilogue& epilogue) {
    run(stream, rows_wgmma<layout, Epilogue>, most_tiles(p, across_of(Epilogue::across(p))), p, gather, epilogue);
  }
  static void weights(const CudaStream& stream, const GroupedProblem& p, Gather gather_a, Gather gather_b) {
    run(stream, weights_wgmma, p.experts * parts(p.m, tile_rows) * across_of(p.n), p, gather_a, gather_b);
  }

 private:
  template <class Kernel, class... A>
  static void run(const CudaStream& stream, Kernel* kernel, std::int64_t tiles, const A&... arguments) {
    const Grid grid{blocks_for(tiles, 1, stream.cuda().multiprocessors()), wgmma_threads,
                    stream.cuda().shared(shared_bytes)};
    launch(kernel, grid, stream.handle(), arguments...);
  }
};

}  // namespace

constinit const ExpertEngine wgmma_engine = engine_of<Wgmma>(WarpPart::columns);

}  // namespace orthant::cuda
