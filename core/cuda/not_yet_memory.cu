// Operations that are still to be written.
#include <orthant/error.h>

#include "core/cuda/cuda_stream.h"

namespace orthant::cuda {

void CudaStream::copy(const Tensor&, const Tensor&) {
  fail("copy is not on cuda yet");
}

void CudaStream::cast(const Tensor&, const Tensor&) {
  fail("cast is not on cuda yet");
}

void CudaStream::fill(const Tensor&, double) {
  fail("fill is not on cuda yet");
}

void CudaStream::copy_rows(const Tensor&, const Tensor&, std::span<const RowRun>) {
  fail("copy_rows is not on cuda yet");
}

}  // namespace orthant::cuda
