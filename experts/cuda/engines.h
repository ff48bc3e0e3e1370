// Which engine computes what on which GPU: the rules of choose_kernels.h and attention_choice.h for the usual case, in
// one answer. A run says it at its start (kernels_text.h), docs/internals/gpu.md has it as a table (tested).
// Pure.
#pragma once

#include <orthant/tensor.h>

#include "core/device/cuda/attention_choice.h"
#include "experts/cuda/choose_kernels.h"

namespace orthant::cuda {

// Libraries that the device was built with, beside CUTLASS.
struct KernelLibraries {
  bool cublas = false, cudnn = false;
};

enum class AttentionEngine { cudnn, mma, plain };

struct Engines {
  bool cublas;                // dense products; else our tiles on the fp32 units
  ExpertProducts experts;     // of a routed layer whose sizes are multiples of 8
  bool fused;                 // rows are gathered and activations applied by these products
  AttentionEngine attention;  // of whole sequences, heads of a multiple of 8 channels
  int cudnn_channels;         // heads of up to so many; 0: none
};

inline Engines engines_for(const ExpertMeans& means, const KernelLibraries& built_with, DType compute) {
  const GroupedProblem p{.layout = GroupedLayout::nt, .experts = 8, .rows = 4096, .n = 1024, .k = 1024};
  int channels = 0;
  for (const int wanted : {128, 256}) {
    const AttentionShape shape{.batch = 1, .positions = 4096, .heads = 1, .kv_heads = 1, .head_dim = wanted};
    if (built_with.cudnn && cudnn_attention_fits(compute, false, shape, means.architecture)) {
      channels = wanted;
    }
  }
  const AttentionShape usual{.batch = 1, .positions = 4096, .heads = 1, .kv_heads = 1, .head_dim = 128};
  return {.cublas = built_with.cublas,
          .experts = choose_products(means, p, compute, compute),
          .fused = choose_fused(means, p, p, compute),
          .attention = channels > 0                         ? AttentionEngine::cudnn
                       : mma_attention_fits(compute, usual) ? AttentionEngine::mma
                                                            : AttentionEngine::plain,
          .cudnn_channels = channels};
}

}  // namespace orthant::cuda
