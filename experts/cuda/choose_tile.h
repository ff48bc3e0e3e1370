// Which kernel multiplies for the experts: pure rules on what the host knows, tested without a GPU.
#pragma once

#include <orthant/tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "experts/cuda/grouped_problem.h"

namespace orthant::cuda {

// CUTLASS's kernels read by TMA: addresses divisible by 16 bytes, rows of a multiple of 16 bytes. An expert's rows
// begin anywhere, so every row must begin well, and with it every size below is a multiple of 8 elements.
inline bool cutlass_takes(const GroupedProblem& p, DType in, DType out) {
  const bool tn = p.layout == GroupedLayout::tn;
  const auto aligned = [](const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; };
  const auto fits = [](std::int64_t size) { return size > 0 && size % 8 == 0 && size < (std::int64_t{1} << 31); };
  return in == DType::bf16 && out == (tn ? DType::f32 : DType::bf16) && (tn || p.beta == 0) && p.rows > 0 &&
         p.rows < (std::int64_t{1} << 31) && fits(p.n) && fits(tn ? p.m : p.k) && aligned(p.a) && aligned(p.b) &&
         aligned(p.c);
}

// Our tiles by mma.sync (ampere/mma_tile.h): slices of 16 KB in shared memory at once. Four where two blocks of a
// multiprocessor have room for them; three of them fit twice into the 100 KB of sm_86, 89 and 120.
// block_memory: what a block may have, 1 KB less than a multiprocessor.
constexpr int mma_stages(std::size_t block_memory) {
  return block_memory + 1024 >= 2 * (4 * 16384 + 1024) ? 4 : 3;
}

// Hopper: two tiles make a cluster, which reads what they share once.
enum class HopperTile {
  large,       // 128 x 256 by two warp groups together, one tile below the other: the fewest bytes per product
  overlapped,  // 128 x 192, two side by side: a tile is stored while the next one is multiplied (ping-pong)
  square,      // 128 x 128, likewise: for widths that 192 pads
  small,       // 64 x 128, no clusters: few rows an expert
};

// For nt and nn; tn is always `large`, as its tiles are of the sizes of weights, not of rows.
// multiprocessors: of the GPU. The rows of an expert are known on the device only; their mean is used.
inline HopperTile choose_tile(const GroupedProblem& p, int multiprocessors) {
  const auto parts = [](std::int64_t size, std::int64_t tile) { return (size + tile - 1) / tile; };
  const std::int64_t rows = parts(p.rows, p.experts);
  // With fewer rows than a tile most of it would be padding. So would be idle processors where large tiles are too few
  // to go round.
  if (rows <= 128 || p.experts * parts(rows, 128) * parts(p.n, 256) < multiprocessors) {
    return HopperTile::small;
  }
  // The time of an expert by arithmetic, nothing of it measured: its products, those of padding too. Rows are padded to
  // whole clusters, by half of one on average. A large tile is stored while nothing is multiplied, about 3,000 cycles,
  // in which the sum would be 192 steps longer. Tiles of 192 columns read a third more, estimated at 6 %, of 128 half
  // more, estimated at 9 %: so sums of up to about 2,048 steps go to one of the two, longer ones to large tiles.
  const auto time = [&](std::int64_t padding, std::int64_t across, double steps) {
    return static_cast<double>((rows + padding) * parts(p.n, across) * across) * steps;
  };
  const double k = static_cast<double>(p.k);
  const double large = time(128, 256, k + 192), overlapped = time(64, 384, 1.06 * k), square = time(64, 256, 1.09 * k);
  if (large <= std::min(overlapped, square)) {
    return HopperTile::large;
  }
  return overlapped <= square ? HopperTile::overlapped : HopperTile::square;
}

// Blackwell.
enum class BlackwellTile {
  pair,    // 256 x 256 by two multiprocessors, each of which reads half of b: the fewest bytes per product
  single,  // 128 x 128 by one: few rows an expert
};

// For nt and nn; tn is always `pair`. By arithmetic alone: a multiprocessor does 4,096 products of bf16 a cycle. For
// them tiles of 128 x 128 read 128 bytes of L2, which has less than half of that for each; a pair reads 64. So a pair
// is taken unless it would multiply twice as many rows, or leave multiprocessors idle.
inline BlackwellTile choose_blackwell_tile(const GroupedProblem& p, int multiprocessors) {
  const auto parts = [](std::int64_t size, std::int64_t tile) { return (size + tile - 1) / tile; };
  const std::int64_t rows = parts(p.rows, p.experts);
  const bool idle = p.experts * parts(rows, 256) * parts(p.n, 256) * 2 < multiprocessors;
  return rows <= 128 || idle ? BlackwellTile::single : BlackwellTile::pair;
}

}  // namespace orthant::cuda
