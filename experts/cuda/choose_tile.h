// Which kernel multiplies for the experts: pure rules on what the host knows, tested without a GPU.
#pragma once

#include <orthant/error.h>
#include <orthant/tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "experts/cuda/grouped_problem.h"
#include "experts/cuda/tiles.h"

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
  // The time of an expert: its products, those of padding too. Rows are padded to whole clusters, by half of one on
  // average. A large tile is stored while nothing is multiplied: as long as the sum would take for 100 steps more. The
  // others are stored beside products, which they delay a little. The constants fit the shares of an H200's peak that
  // each tile reached in 19 products of six models (bench/results/hopper.md).
  const auto time = [&](std::int64_t padding, std::int64_t across, double steps) {
    return static_cast<double>((rows + padding) * parts(p.n, across) * across) * steps;
  };
  const double k = static_cast<double>(p.k);
  const double large = time(128, 256, k + 100);
  const double overlapped = time(64, 384, 1.03 * k);
  const double square = time(64, 256, 1.035 * k + 24);
  if (large <= std::min(overlapped, square)) {
    return HopperTile::large;
  }
  return overlapped <= square ? HopperTile::overlapped : HopperTile::square;
}

// ORTHANT_CUDA_TILE, for measuring: one tile for all products of nt and nn by CUTLASS on Hopper, or nothing.
// Errors: ConfigError for any other text.
inline std::optional<HopperTile> tile_setting(std::string_view given) {
  if (given.empty()) {
    return std::nullopt;
  }
  constexpr std::pair<std::string_view, HopperTile> names[] = {{"large", HopperTile::large},
                                                               {"overlapped", HopperTile::overlapped},
                                                               {"square", HopperTile::square},
                                                               {"small", HopperTile::small}};
  for (const auto& [name, tile] : names) {
    if (given == name) {
      return tile;
    }
  }
  throw ConfigError(
      fmt::format("ORTHANT_CUDA_TILE={}: expected large, overlapped, square or small, or nothing", given));
}

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
