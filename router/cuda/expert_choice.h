// The second half of gate where the experts choose: see router/rules/expert_choice.h.
#pragma once

#include <cuda_runtime.h>

#include <orthant/ops.h>

#include "core/device/cuda/recorder.h"

namespace orthant::cuda {

// Writes expert, weight and chosen as Stream::gate, from the logits and their logsumexp.
void choose_by_experts(const StreamRef& stream, const Tensor& expert, const Tensor& weight, const Tensor& chosen,
                       const Tensor& logits, const Tensor& lse, const Tensor& valid, const GateConfig& config);

}  // namespace orthant::cuda
