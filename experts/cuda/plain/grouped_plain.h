// The experts' products by our own kernel: fp32, GPUs before Hopper, sizes that CUTLASS does not take; and the oracle.
#pragma once

#include <cuda_runtime.h>

#include <orthant/tensor.h>

#include "core/device/cuda/recorder.h"
#include "experts/cuda/grouped_problem.h"

namespace orthant::cuda {

// f inputs of dtype `in`, c of dtype `out`. Nothing waits for the device.
void grouped_plain(const GroupedProblem& p, DType in, DType out, const StreamRef& stream);

}  // namespace orthant::cuda
