// What a run says at its start of the kernels that it will use, by the rules that choose them. Tested without a GPU.
#pragma once

#include <orthant/error.h>
#include <orthant/tensor.h>

#include <string>

#include "experts/cuda/engines.h"

namespace orthant::cuda {

inline std::string experts_text(const ExpertMeans& means, DType compute) {
  const Engines engines = engines_for(means, {}, compute);
  const char* const rows = engines.fused ? "fused" : "packed";
  const std::string by_whom = means.setting == ExpertSetting::automatic ? "" : ", as ORTHANT_CUDA_EXPERTS says";
  const std::string why = means.cutlass ? by_whom : " (built without CUTLASS)";
  switch (engines.experts) {
    case ExpertProducts::cutlass: return fmt::format("CUTLASS, {}{}", rows, by_whom);
    case ExpertProducts::mma:
      return fmt::format("our mma.sync kernels, {}{}", rows,
                         means.hopper() || means.blackwell() ? why : by_whom + " (CUTLASS's are for sm_90 and sm_100)");
    case ExpertProducts::plain: break;
  }
  return "our tiles on the fp32 units (the matrix units take bf16)";
}

inline std::string attention_text(int architecture, bool cudnn, bool deterministic, DType compute) {
  const Engines engines = engines_for({.architecture = architecture}, {.cudnn = cudnn}, compute);
  switch (engines.attention) {
    case AttentionEngine::cudnn:
      return fmt::format(
          "cuDNN, {}, for whole sequences without documents or a window, heads of up to {} channels; else our mma.sync "
          "kernels",
          deterministic ? "deterministic" : "its backward in any order of sums (run.deterministic = false)",
          engines.cudnn_channels);
    case AttentionEngine::mma: return "our mma.sync kernels (built without cuDNN)";
    case AttentionEngine::plain: break;
  }
  return "our tiles on the fp32 units (the matrix units take bf16)";
}

inline std::string kernels_text(const ExpertMeans& means, const KernelLibraries& built_with, bool deterministic,
                                DType compute) {
  return fmt::format("kernels on sm_{} in {}: dense products: {}; experts: {}; attention: {}", means.architecture,
                     name_of(compute), built_with.cublas ? "cuBLAS" : "our tiles on the fp32 units",
                     experts_text(means, compute),
                     attention_text(means.architecture, built_with.cudnn, deterministic, compute));
}

}  // namespace orthant::cuda
