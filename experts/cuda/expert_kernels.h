// What the rules of choose_kernels.h choose from, in this build and on this stream's GPU.
#pragma once

#include "core/device/cuda/cuda_stream.h"
#include "experts/cuda/choose_kernels.h"
#include "experts/cuda/expert_engine.h"

namespace orthant::cuda {

#if defined(ORTHANT_HAVE_CUTLASS)
inline constexpr bool have_cutlass = true;
#else
inline constexpr bool have_cutlass = false;
#endif

inline ExpertMeans expert_means(const CudaStream& stream) {
  return {stream.cuda().architecture(), have_cutlass, expert_setting(stream.cuda().expert_kernels())};
}

inline const ExpertEngine& expert_engine(const ExpertMeans& means) {
  return means.hopper() ? wgmma_engine : mma_engine;
}

}  // namespace orthant::cuda
