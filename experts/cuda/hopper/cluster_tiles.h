// Which tiles the clusters of two blocks work on, and in which order: counted out by one counter in device memory,
// those of the expert with the most rows first, so that what is left at the end is small. How many rows an expert has
// is known on the device only.
//
// A pair of tiles is 2 x 128 rows of one column of tiles: the blocks share the other operand. Where an expert has at
// most 128 rows left, they take two neighbouring columns of those rows instead, each its own operand: so rows are
// padded to 128 at most. For gradients of weights, "rows" are those of c, the same for each expert.
#pragma once

#include <cstdint>

#include "experts/cuda/expert_tiles.h"

namespace orthant::cuda {

inline constexpr int pair_rows = 2 * tile_rows;

// int32 in device memory: the counter; the first pair of each place in the order, and their number; the expert of each.
struct Schedule {
  std::int32_t* memory;
  std::int32_t experts;

  static std::int64_t words(std::int64_t experts) { return 2 * experts + 2; }
  __device__ std::int32_t* counter() const { return memory; }
  __device__ std::int32_t* first() const { return memory + 1; }
  __device__ std::int32_t* expert() const { return memory + 2 + experts; }
};

// How the pairs of `rows` rows by `across` tiles are counted: whole ones, then those of the last rows.
struct Pairs {
  int down, across, last;

  ORTHANT_HOST_DEVICE static Pairs of(std::int64_t rows, int across) {
    const int left = static_cast<int>(rows % pair_rows);
    return {static_cast<int>(rows / pair_rows) + (left > tile_rows ? 1 : 0), across,
            left > 0 && left <= tile_rows ? (across + 1) / 2 : 0};
  }
  ORTHANT_HOST_DEVICE int count() const { return down * across + last; }
};

// A block's tile of a pair.
struct ClusterTile {
  int expert;
  int begin, count;  // the expert's rows, among all packed ones
  int row;           // first row of the tile, of the expert's (of c)
  int column;        // number of the tile's columns
  bool shared;       // the other block's tile has the same columns

  __device__ int first_row() const { return begin + row; }
  __device__ int rows_left() const { return count - row; }  // 0 or less: none
};

ORTHANT_HOST_DEVICE inline ClusterTile place_tile(int expert, RowRange rows, const Pairs& pairs, int number, int rank) {
  const int begin = static_cast<int>(rows.begin), count = static_cast<int>(rows.end - rows.begin);
  const int whole = pairs.down * pairs.across;
  if (number < whole) {
    const TilePlace place = tile_place(number, pairs.down, pairs.across);
    return {expert, begin, count, place.row * pair_rows + rank * tile_rows, place.column, true};
  }
  return {expert, begin, count, pairs.down * pair_rows, 2 * (number - whole) + rank, false};
}

// Rows of c of the tiles of an expert.
__device__ inline std::int64_t rows_of_tiles(const GroupedProblem& p, RowRange rows) {
  return p.layout == GroupedLayout::tn ? p.m : rows.end - rows.begin;
}

// At most this many pairs.
inline std::int64_t most_pairs(const GroupedProblem& p, std::int64_t across) {
  if (p.layout == GroupedLayout::tn) {
    return p.experts * Pairs::of(p.m, static_cast<int>(across)).count();
  }
  return (p.rows / pair_rows + (p.experts < p.rows ? p.experts : p.rows)) * across;
}

// The tile of this number for the block of this rank; expert -1: there are fewer. All lanes of the warp call.
__device__ inline ClusterTile find_tile(const GroupedProblem& p, const Schedule& schedule, int number, int across,
                                        int rank) {
  const std::int32_t* const first = schedule.first();
  if (number < 0 || number >= first[schedule.experts]) {
    return {-1, 0, 0, 0, 0, false};
  }
  // The last place whose first pair is not after it, of 32 at a time.
  int low = 0, high = schedule.experts;
  while (high - low > 1) {
    const int step = static_cast<int>(parts(high - low, warp_threads)), at = low + lane() * step;
    const unsigned before = __ballot_sync(all_lanes, at < high && first[at] <= number);
    low += (__popc(before) - 1) * step;
    high = low + step < high ? low + step : high;
  }
  const int expert = schedule.expert()[low];
  const RowRange rows = rows_of(p, expert);
  return place_tile(expert, rows, Pairs::of(rows_of_tiles(p, rows), across), number - first[low], rank);
}

}  // namespace orthant::cuda
