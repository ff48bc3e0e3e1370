// Hopper's copies of boxes of a tensor between global and shared memory, for the CPU (cp.async.bulk.tensor), and
// matrices from registers to shared memory (stmatrix). Meanings are those of the PTX ISA: "Tensors", "Async copy",
// "stmatrix"; tensor maps are those of include/cuda.h.
//
// A box on its way is NaN, and wgmma may not read it; it ends late, in each block by itself. A store reads its box when
// it is waited for, no earlier: what has changed by then is what it stores, and stmatrix may not change it.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "tests/simt/warpgroup.h"

namespace orthant::simt {

// The box that begins at element (x, y, z) to `to`, zeros where there is no tensor; its bytes end at the barrier.
// blocks: a bit for each block of the cluster that gets it, at the same addresses of its own; 0: this block alone.
void load_box(std::uint32_t to, std::uint32_t barrier, const CUtensorMap* map, int x, int y, int z, unsigned blocks,
              const Where& where = Where::current());
// The same way back, of what lies within the tensor; in groups of this thread.
void store_box(const CUtensorMap* map, std::uint32_t from, int x, int y, int z, const Where& where = Where::current());
void end_stores();               // cp.async.bulk.commit_group
void wait_for_stores(int left);  // cp.async.bulk.wait_group.read

// Four 8 x 8 matrices of bf16: lane i names row i % 8 of matrix i / 8, and holds of each (i / 4, 2 (i % 4)) and its
// right neighbour. All lanes of the warp call.
void store_matrices(std::uint32_t row, const std::uint32_t (&r)[4], const Where& where = Where::current());
// An ordinary store of 16 bytes of zeros, which is seen by what says that it must be fenced.
void store_zeros(std::uint32_t to, const Where& where = Where::current());

}  // namespace orthant::simt
