// What a run says at its start of the kernels that it will use, by the rules that choose them. Tested without a GPU.
#pragma once

#include <orthant/error.h>
#include <orthant/tensor.h>

#include <string>

#include "core/device/cuda/attention_choice.h"
#include "experts/cuda/choose_kernels.h"

namespace orthant::cuda {

// Libraries that the device was built with, beside CUTLASS.
struct KernelLibraries {
  bool cublas = false, cudnn = false;
};

// Of a routed layer whose sizes are multiples of 8.
inline std::string experts_text(const ExpertMeans& means, DType compute) {
  const GroupedProblem p{.layout = GroupedLayout::nt, .experts = 8, .rows = 4096, .n = 1024, .k = 1024};
  const std::string by_whom = means.setting == ExpertSetting::automatic ? "" : ", as ORTHANT_CUDA_EXPERTS says";
  const char* const rows = choose_fused(means, p, p, compute) ? "fused" : "packed";
  switch (choose_products(means, p, compute, compute)) {
    case ExpertProducts::cutlass: return fmt::format("CUTLASS, {}{}", rows, by_whom);
    case ExpertProducts::wgmma:
      return fmt::format("our wgmma kernels, {}{}", rows, means.cutlass ? by_whom : " (built without CUTLASS)");
    case ExpertProducts::mma:
      return fmt::format("our mma.sync kernels, {}{} (CUTLASS's and wgmma are for sm_90)", rows, by_whom);
    case ExpertProducts::plain: break;
  }
  return "our tiles on the fp32 units (the matrix units take bf16)";
}

// Of heads whose channels are a multiple of 8.
inline std::string attention_text(int architecture, bool cudnn, bool deterministic, DType compute) {
  const AttentionShape usual{.batch = 1, .positions = 4096, .heads = 1, .kv_heads = 1, .head_dim = 128};
  if (!mma_attention_fits(compute, usual)) {
    return "our tiles on the fp32 units (the matrix units take bf16)";
  }
  const std::string ours = "our mma.sync kernels";
  if (!cudnn) {
    return ours + " (built without cuDNN)";
  }
  AttentionShape wide = usual;
  wide.head_dim = 256;
  return fmt::format(
      "cuDNN, {}, for whole sequences without documents or a window, heads of up to {} channels; else {}",
      deterministic ? "deterministic" : "deterministic where it can be (run.deterministic = false)",
      cudnn_attention_fits(compute, false, wide, architecture) ? 256 : 128, ours);
}

inline std::string kernels_text(const ExpertMeans& means, const KernelLibraries& built_with, bool deterministic,
                                DType compute) {
  return fmt::format("kernels on sm_{} in {}: dense products: {}; experts: {}; attention: {}", means.architecture,
                     name_of(compute), built_with.cublas ? "cuBLAS" : "our tiles on the fp32 units",
                     experts_text(means, compute),
                     attention_text(means.architecture, built_with.cudnn, deterministic, compute));
}

}  // namespace orthant::cuda
