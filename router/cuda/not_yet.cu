// Operations that are still to be written.
#include <orthant/error.h>

#include "core/cuda/cuda_stream.h"

namespace orthant::cuda {

void CudaStream::gate(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                      const Tensor&, const Tensor&, const RandomKey&, const GateConfig&) {
  fail("gate is not on cuda yet");
}

void CudaStream::dispatch_plan(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                               const Tensor&, const Tensor&, const GateConfig&) {
  fail("dispatch_plan is not on cuda yet");
}

void CudaStream::keep_seated(const Tensor&, const Tensor&) {
  fail("keep_seated is not on cuda yet");
}

void CudaStream::pack(const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  fail("pack is not on cuda yet");
}

void CudaStream::pack_backward(const Tensor&, const Tensor&, const Tensor&, bool) {
  fail("pack_backward is not on cuda yet");
}

void CudaStream::combine(const Tensor&, const Tensor&, const Tensor&, const Tensor&, bool) {
  fail("combine is not on cuda yet");
}

void CudaStream::combine_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                  const Tensor&, const Tensor&) {
  fail("combine_backward is not on cuda yet");
}

void CudaStream::gate_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                               const Tensor&, float, float, const GateConfig&) {
  fail("gate_backward is not on cuda yet");
}

void CudaStream::gate_losses(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                             const GateConfig&) {
  fail("gate_losses is not on cuda yet");
}

}  // namespace orthant::cuda
