// Which tile of which expert's product a block works on, and which rows of memory it is made of. How many rows an
// expert has is known on the device only.
#pragma once

#include <cstdint>

#include "core/device/cuda/device_math.h"
#include "experts/cuda/expert_engine.h"
#include "experts/cuda/grouped_problem.h"
#include "experts/cuda/tile_order.h"

namespace orthant::cuda {

inline constexpr int tile_rows = 128;

// A tile of an expert's product.
struct Tile {
  std::int64_t expert;
  RowRange rows;        // the expert's, among all packed rows
  std::int64_t row;     // first row of the tile, among the expert's
  std::int64_t column;  // number of the tile's columns

  __device__ std::int64_t first_row() const { return rows.begin + row; }
  __device__ std::int64_t rows_left() const { return rows.end - rows.begin - row; }
};

// The tile of this number when all experts' are counted through; expert -1: there are fewer. across: tiles side by
// side. Each warp finds it by itself: a lane counts the tiles of a run of experts.
__device__ inline Tile find_tile(const GroupedProblem& p, int number, int across) {
  const std::int64_t run = parts(p.experts, warp_threads), first = lane() * run;
  const std::int64_t last = first + run < p.experts ? first + run : p.experts;
  const auto tiles_of = [&](std::int64_t expert) {
    const RowRange rows = rows_of(p, expert);
    return static_cast<int>(parts(rows.end - rows.begin, tile_rows)) * across;
  };
  int mine = 0;
  for (std::int64_t e = first; e < last; ++e) {
    mine += tiles_of(e);
  }
  int before = mine;  // inclusive sums over the lanes
#pragma unroll
  for (int distance = 1; distance < warp_threads; distance *= 2) {
    const int other = __shfl_up_sync(all_lanes, before, distance);
    before += lane() >= distance ? other : 0;
  }
  before -= mine;
  const bool here = number >= before && number < before + mine;
  const unsigned found = __ballot_sync(all_lanes, here);
  if (found == 0) {
    return {-1, {0, 0}, 0, 0};
  }
  int expert = static_cast<int>(first), tile = number - before;
  while (here) {
    const int tiles = tiles_of(expert);
    if (tile < tiles) {
      break;
    }
    tile -= tiles;
    ++expert;
  }
  const int holder = __ffs(static_cast<int>(found)) - 1;
  expert = __shfl_sync(all_lanes, expert, holder);
  tile = __shfl_sync(all_lanes, tile, holder);
  const RowRange rows = rows_of(p, expert);
  const TilePlace place = tile_place(tile, static_cast<int>(parts(rows.end - rows.begin, tile_rows)), across);
  return {expert, rows, std::int64_t{place.row} * tile_rows, place.column};
}

// At most this many tiles: each expert's last row of tiles may be a part, one an expert more than the rows alone need.
inline std::int64_t most_tiles(const GroupedProblem& p, std::int64_t across) {
  return (p.rows / tile_rows + (p.experts < p.rows ? p.experts : p.rows)) * across;
}

// The memory row of packed row r, or -1: zeros.
__device__ inline int gathered(const Gather& gather, int r) {
  if (gather.source == nullptr) {
    return r;
  }
  const std::int32_t choice = gather.source[r];
  return choice < 0 ? -1 : choice / gather.top_k;
}

}  // namespace orthant::cuda
