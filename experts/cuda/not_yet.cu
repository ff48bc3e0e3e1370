// Operations that are still to be written.
#include <orthant/error.h>

#include "core/cuda/cuda_stream.h"

namespace orthant::cuda {

void CudaStream::gemm(const Tensor&, const Tensor&, const Tensor&, Gemm) {
  fail("gemm is not on cuda yet");
}

void CudaStream::grouped_gemm(const Tensor&, const Tensor&, const Tensor&, const Tensor&, Gemm) {
  fail("grouped_gemm is not on cuda yet");
}

void CudaStream::grouped_gemm_tn(const Tensor&, const Tensor&, const Tensor&, const Tensor&, float) {
  fail("grouped_gemm_tn is not on cuda yet");
}

}  // namespace orthant::cuda
