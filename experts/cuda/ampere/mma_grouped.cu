// The experts' products on the matrix units of Ampere and later: one block a tile of mma_tile.h.
#include <type_traits>

#include "core/device/cuda/cuda_stream.h"
#include "experts/cuda/ampere/mma_tile.h"
#include "experts/cuda/choose_tile.h"
#include "experts/cuda/expert_tiles.h"
#include "experts/cuda/tile_epilogues.h"

namespace orthant::cuda {
namespace {

static_assert(tile_rows == mma_edge);
constexpr int staged_rows = 32, staged_stride = mma_edge + 4;  // floats; neighbouring rows begin in other banks
constexpr std::size_t staged_bytes = 2 * std::size_t{staged_rows} * staged_stride * sizeof(float);
static_assert(staged_bytes <= mma_stage_bytes(3));
static_assert(2 * (mma_stage_bytes(3) + 1024) <= least_shared_memory + 1024);  // two blocks on every GPU

// A quarter of the tile in shared memory, as floats [32][staged_stride]: a part (tile_epilogues.h).
struct Quarter {
  static constexpr int rows = staged_rows, columns = mma_edge;
  const float* staged;

  __device__ const float* at(int row, int piece) const { return staged + row * staged_stride + piece * 8; }
  template <int pieces, int batch, class Load, class Use>
  __device__ void for_each_piece(Load&& load, Use&& use) const {
    divide_pieces<rows, pieces, mma_threads, batch>(static_cast<int>(threadIdx.x), load, use);
  }
};

// Calls use(part, its first row in the tile) for the tile's quarters. The warps' first 32 rows are in memory together,
// then the others: so the tile's end needs less memory than its slices, and registers become free half-way.
template <class Use>
__device__ void for_each_quarter(const MmaSums& sums, bf16* memory, Use&& use) {
  float* const staged = reinterpret_cast<float*>(memory);
  const auto stage = [&]<int first>(std::integral_constant<int, first>) {
    for_each_pair<first>(sums, [&](int row, int column, float low, float high) {
      const int place = row / 64 * staged_rows + row % staged_rows;
      *reinterpret_cast<float2*>(staged + place * staged_stride + column) = make_float2(low, high);
    });
    __syncthreads();
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      use(Quarter{staged + half * staged_rows * staged_stride}, half * 64 + first * 16);
    }
  };
  stage(std::integral_constant<int, 0>{});
  __syncthreads();
  stage(std::integral_constant<int, 2>{});
}

__host__ __device__ int across_of(std::int64_t columns) {
  return static_cast<int>(parts(columns, mma_edge));
}

// There are blocks for the most tiles that there can be, and those left over end at once.
template <GroupedLayout layout, int stages, class Epilogue>
__global__ __launch_bounds__(mma_threads, 2) void rows_mma(GroupedProblem p, Gather gather, Epilogue epilogue) {
  const Tile tile = find_tile(p, static_cast<int>(blockIdx.x), across_of(Epilogue::across(p)));
  if (tile.expert < 0) {
    return;
  }
  bf16* const memory = dynamic_shared<bf16>();
  const std::int64_t column = tile.column * mma_edge;
  const bf16* const b = static_cast<const bf16*>(p.b) + tile.expert * p.n * p.k;
  const ByRows left = by_rows(p.k, [&](int i) -> const bf16* {
    const int row = i < tile.rows_left() ? gathered(gather, static_cast<int>(tile.first_row()) + i) : -1;
    return row < 0 ? nullptr : static_cast<const bf16*>(p.a) + row * p.k;
  });
  MmaSums sums;
  if constexpr (layout == GroupedLayout::nt) {
    multiply_mma_tile<stages>(sums, left,
                              by_rows(p.k,
                                      [&](int i) -> const bf16* {
                                        const int row = Epilogue::row_of_b(p, static_cast<int>(column) + i);
                                        return row < 0 ? nullptr : b + row * p.k;
                                      }),
                              p.k, memory);
  } else {
    multiply_mma_tile<stages>(
        sums, left, by_steps(p.k, p.n - column, [&](std::int64_t k) { return b + k * p.n + column; }), p.k, memory);
  }
  for_each_quarter(sums, memory, [&](const Quarter& part, int row) {
    epilogue(part, p, {tile.first_row() + row, tile.rows_left() - row, column});
  });
}

// tn: one block a tile of one expert's c [m, n].
template <int stages>
__global__ __launch_bounds__(mma_threads, 2) void weights_mma(GroupedProblem p, Gather gather_a, Gather gather_b) {
  const int across = across_of(p.n), down = across_of(p.m), tiles = across * down;
  const std::int64_t expert = static_cast<int>(blockIdx.x) / tiles;
  const TilePlace place = tile_place(static_cast<int>(blockIdx.x) % tiles, down, across);
  const std::int64_t i0 = std::int64_t{place.row} * mma_edge, j0 = std::int64_t{place.column} * mma_edge;
  const RowRange rows = rows_of(p, expert);
  const std::int64_t count = rows.end - rows.begin;
  if (count == 0 && p.beta != 0) {
    return;
  }
  bf16* const memory = dynamic_shared<bf16>();
  const auto operand = [&](const void* data, const Gather& gather, std::int64_t columns, std::int64_t from) {
    return by_steps(count, columns - from, [=](std::int64_t k) -> const bf16* {
      const std::int64_t row = gathered(gather, static_cast<int>(rows.begin + k));
      return row < 0 ? nullptr : static_cast<const bf16*>(data) + row * columns + from;
    });
  };
  MmaSums sums;
  multiply_mma_tile<stages>(sums, operand(p.a, gather_a, p.m, i0), operand(p.b, gather_b, p.n, j0), count, memory);
  float* const c = static_cast<float*>(p.c) + (expert * p.m + i0) * p.n + j0;
  for_each_quarter(sums, memory, [&](const Quarter& part, int row) {
    store_part(part, c + row * p.n, p.n, p.m - i0 - row, p.n - j0, p.beta != 0);
  });
}

// Calls fn(std::integral_constant<int, stages>{}) with the stages for this GPU.
template <class F>
void with_stages(const CudaDevice& device, F&& fn) {
  if (mma_stages(device.shared_memory()) == 4) {
    fn(std::integral_constant<int, 4>{});
  } else {
    fn(std::integral_constant<int, 3>{});
  }
}

struct Mma {
  template <GroupedLayout layout, class Epilogue>
  static void rows(const CudaStream& stream, const GroupedProblem& p, Gather gather, const Epilogue& epilogue) {
    const std::int64_t tiles = most_tiles(p, across_of(Epilogue::across(p)));
    with_stages(stream.cuda(), [&]<int stages>(std::integral_constant<int, stages>) {
      launch(rows_mma<layout, stages, Epilogue>,
             Grid{blocks_for(tiles, 1), mma_threads, stream.cuda().shared(mma_stage_bytes(stages))}, stream.handle(), p,
             gather, epilogue);
    });
  }
  static void weights(const CudaStream& stream, const GroupedProblem& p, Gather gather_a, Gather gather_b) {
    const std::int64_t tiles = p.experts * across_of(p.m) * across_of(p.n);
    with_stages(stream.cuda(), [&]<int stages>(std::integral_constant<int, stages>) {
      launch(weights_mma<stages>,
             Grid{blocks_for(tiles, 1), mma_threads, stream.cuda().shared(mma_stage_bytes(stages))}, stream.handle(), p,
             gather_a, gather_b);
    });
  }
};

}  // namespace

constinit const ExpertEngine mma_engine = engine_of<Mma>(Quarter::columns);

}  // namespace orthant::cuda
