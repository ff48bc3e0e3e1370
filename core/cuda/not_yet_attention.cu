// Operations that are still to be written.
#include <orthant/error.h>

#include "core/cuda/cuda_stream.h"

namespace orthant::cuda {

void CudaStream::split_rotary(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                              const RotaryShape&) {
  fail("split_rotary is not on cuda yet");
}

void CudaStream::merge_rotary_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                       const RotaryShape&) {
  fail("merge_rotary_backward is not on cuda yet");
}

void CudaStream::attention(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                           const AttentionShape&) {
  fail("attention is not on cuda yet");
}

void CudaStream::attention_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                    const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                    const AttentionShape&) {
  fail("attention_backward is not on cuda yet");
}

void CudaStream::attention_block(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                 const Tensor&, const Tensor&, const Tensor&, const AttentionShape&) {
  fail("attention_block is not on cuda yet");
}

void CudaStream::attention_merge(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const AttentionShape&) {
  fail("attention_merge is not on cuda yet");
}

void CudaStream::attention_block_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                          const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                          const Tensor&, const Tensor&, const AttentionShape&) {
  fail("attention_block_backward is not on cuda yet");
}

}  // namespace orthant::cuda
