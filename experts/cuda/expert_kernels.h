// What the rules of choose_kernels.h choose from, in this build and on this stream's GPU.
#pragma once

#include "core/device/cuda/cuda_device.h"
#include "experts/cuda/choose_kernels.h"
#include "experts/cuda/expert_engine.h"

namespace orthant::cuda {

// Whether CUTLASS's kernels for this GPU are in this build.
inline bool have_cutlass([[maybe_unused]] int architecture) {
#if defined(ORTHANT_HAVE_CUTLASS_BLACKWELL)
  return architecture == 90 || architecture == 100 || architecture == 103;
#elif defined(ORTHANT_HAVE_CUTLASS)
  return architecture == 90;
#else
  return false;
#endif
}

inline ExpertMeans expert_means(const CudaDevice& device) {
  return {device.architecture(), have_cutlass(device.architecture()), expert_setting(device.expert_kernels())};
}

}  // namespace orthant::cuda
