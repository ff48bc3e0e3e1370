// Which kernel multiplies for the experts: pure rules on what the host knows, tested without a GPU.
#pragma once

#include <orthant/tensor.h>

#include <cstdint>

#include "experts/cuda/grouped_problem.h"

namespace orthant::cuda {

// Hopper's kernels read by TMA: addresses divisible by 16 bytes, rows of a multiple of 16 bytes. An expert's rows begin
// anywhere, so every row must begin well, and with it every size below is a multiple of 8 elements.
inline bool hopper_takes(const GroupedProblem& p, DType in, DType out) {
  const bool tn = p.layout == GroupedLayout::tn;
  const auto aligned = [](const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; };
  const auto fits = [](std::int64_t size) { return size > 0 && size % 8 == 0 && size < (std::int64_t{1} << 31); };
  return in == DType::bf16 && out == (tn ? DType::f32 : DType::bf16) && (tn || p.beta == 0) && p.rows > 0 &&
         p.rows < (std::int64_t{1} << 31) && fits(p.n) && fits(tn ? p.m : p.k) && aligned(p.a) && aligned(p.b) &&
         aligned(p.c);
}

enum class HopperTile {
  large,       // 128 x 256 by two warp groups together: the fewest bytes per product
  overlapped,  // 128 x 192, two tiles at a time in turns: a tile is stored while the next one is multiplied
  small,       // 64 x 128, in turns: few rows an expert
};

// For nt and nn; tn is always `large`, as its tiles are of the sizes of weights, not of rows.
// multiprocessors: of the GPU. The rows of an expert are known on the device only; their mean is used.
inline HopperTile choose_tile(const GroupedProblem& p, int multiprocessors) {
  const auto parts = [](std::int64_t size, std::int64_t tile) { return (size + tile - 1) / tile; };
  const std::int64_t rows = parts(p.rows, p.experts);
  // Two large tiles make a cluster, one below the other: with fewer rows than one of them most of it would be padding.
  // So would be idle processors where large tiles are too few to go round.
  if (rows <= 128 || p.experts * parts(rows, 128) * parts(p.n, 256) < multiprocessors) {
    return HopperTile::small;
  }
  // A short sum leaves no time to store behind it. 192 columns where 256 would be cut off worse.
  if (p.k <= 512 || parts(p.n, 192) * 192 < parts(p.n, 256) * 256) {
    return HopperTile::overlapped;
  }
  return HopperTile::large;
}

}  // namespace orthant::cuda
