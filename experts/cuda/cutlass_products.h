// The experts' products by CUTLASS's kernels (cutlass/cutlass_gemm.h).
#pragma once

#include "core/device/cuda/cuda_stream.h"
#include "experts/cuda/describe_products.h"
#include "experts/cuda/grouped_problem.h"

namespace orthant::cuda {

// In stream order; nothing waits for the device. REQUIRES: choose_products says cutlass; `groups` describe p, and the
// description is enqueued. Errors: Error with the kernel's name and CUTLASS's status.
void multiply_by_cutlass(CudaStream& stream, const GroupedProblem& p, const GroupArrays& groups);

}  // namespace orthant::cuda
