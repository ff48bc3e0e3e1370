// The experts' products on Hopper's tensor cores: CUTLASS's pointer-array kernels, one persistent launch for all
// experts, with the shapes of the groups written on the device. bf16 in, fp32 sums; nt and nn give bf16, tn fp32.
// Source of the scheme: NVIDIA/cutlass, examples 56 and 57.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "experts/cuda/choose_tile.h"
#include "experts/cuda/grouped_problem.h"

namespace orthant::cuda {

// One instantiation. REQUIRES: hopper_takes(p); compute capability 9.0; experts without rows have their c
// written by somebody else (tn).
struct HopperKernel {
  const char* name;
  // Bytes of device memory that run() works in, from an address divisible by 256 on.
  std::size_t (*workspace_bytes)(const GroupedProblem& p, int sm_count);
  // In stream order; nothing waits for the device. Errors: Error with CUTLASS's status.
  void (*run)(const GroupedProblem& p, int sm_count, void* workspace, cudaStream_t stream);
};

// One a file (*_cutlass.cu). tn has one tile only.
extern const HopperKernel hopper_nt_large, hopper_nt_overlapped, hopper_nt_small;
extern const HopperKernel hopper_nn_large, hopper_nn_overlapped, hopper_nn_small;
extern const HopperKernel hopper_tn_large;

inline const HopperKernel& hopper_kernel(GroupedLayout layout, HopperTile tile) {
  if (layout == GroupedLayout::tn) {
    return hopper_tn_large;
  }
  const bool nt = layout == GroupedLayout::nt;
  switch (tile) {
    case HopperTile::overlapped: return nt ? hopper_nt_overlapped : hopper_nn_overlapped;
    case HopperTile::small: return nt ? hopper_nt_small : hopper_nn_small;
    case HopperTile::large: break;
  }
  return nt ? hopper_nt_large : hopper_nn_large;
}

}  // namespace orthant::cuda
