// The experts' products by CUTLASS's pointer-array kernels, on the matrix units of Hopper (wgmma) and Blackwell
// (tcgen05): one persistent launch for all experts, with the shapes of the groups written on the device
// (describe_products.h). bf16 in, fp32 sums; nt and nn give bf16, tn fp32. Source of the scheme: NVIDIA/cutlass,
// examples 56, 57 and 75.
#pragma once

#include <cstddef>

#include "core/device/cuda/cuda_stream.h"
#include "experts/cuda/describe_products.h"
#include "experts/cuda/grouped_problem.h"
#include "experts/cuda/tiles.h"

namespace orthant::cuda {

// One instantiation. REQUIRES: cutlass_takes(p); a GPU that it is for; `groups` describe p.
struct CutlassKernel {
  const char* name;
  // Bytes of device memory that run() works in, from an address divisible by 256 on.
  std::size_t (*workspace_bytes)(const GroupedProblem& p, int multiprocessors);
  // In stream order; nothing waits for the device. Errors: Error with CUTLASS's status.
  void (*run)(const CudaStream& stream, const GroupedProblem& p, const GroupArrays& groups, void* workspace);
};

// Layouts a file (*_cutlass.cu). tn has one tile only. Hopper's: compute capability 9.0.
extern const CutlassKernel hopper_nt_large, hopper_nt_overlapped, hopper_nt_square, hopper_nt_small;
extern const CutlassKernel hopper_nn_large, hopper_nn_overlapped, hopper_nn_square, hopper_nn_small;
extern const CutlassKernel hopper_tn_large;
// Blackwell's: 10.0 and 10.3. In builds for these alone (ORTHANT_HAVE_CUTLASS_BLACKWELL).
extern const CutlassKernel blackwell_nt_pair, blackwell_nt_single;
extern const CutlassKernel blackwell_nn_pair, blackwell_nn_single;
extern const CutlassKernel blackwell_tn_pair;

inline const CutlassKernel& hopper_kernel(GroupedLayout layout, HopperTile tile) {
  if (layout == GroupedLayout::tn) {
    return hopper_tn_large;
  }
  const bool nt = layout == GroupedLayout::nt;
  switch (tile) {
    case HopperTile::overlapped: return nt ? hopper_nt_overlapped : hopper_nn_overlapped;
    case HopperTile::square: return nt ? hopper_nt_square : hopper_nn_square;
    case HopperTile::small: return nt ? hopper_nt_small : hopper_nn_small;
    case HopperTile::large: break;
  }
  return nt ? hopper_nt_large : hopper_nn_large;
}

inline const CutlassKernel& blackwell_kernel(GroupedLayout layout, BlackwellTile tile) {
  if (layout == GroupedLayout::tn) {
    return blackwell_tn_pair;
  }
  const bool nt = layout == GroupedLayout::nt;
  if (tile == BlackwellTile::single) {
    return nt ? blackwell_nt_single : blackwell_nn_single;
  }
  return nt ? blackwell_nt_pair : blackwell_nn_pair;
}

}  // namespace orthant::cuda
