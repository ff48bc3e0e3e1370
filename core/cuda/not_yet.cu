// Operations that are still to be written.
#include <orthant/error.h>

#include "core/cuda/cuda_stream.h"

namespace orthant::cuda {

void CudaStream::swap_outer(const Tensor&, const Tensor&) {
  fail("swap_outer is not on cuda yet");
}

void CudaStream::add(const Tensor&, const Tensor&) {
  fail("add is not on cuda yet");
}

void CudaStream::scale(const Tensor&, float) {
  fail("scale is not on cuda yet");
}

void CudaStream::sum_squares(const Tensor&, const Tensor&) {
  fail("sum_squares is not on cuda yet");
}

void CudaStream::sum(const Tensor&, const Tensor&) {
  fail("sum is not on cuda yet");
}

void CudaStream::init_normal(const Tensor&, const RandomKey&, float, const SliceMap&) {
  fail("init_normal is not on cuda yet");
}

void CudaStream::dropout(const Tensor&, const Tensor&, const Tensor&, const RandomKey&, float, const SliceMap&) {
  fail("dropout is not on cuda yet");
}

void CudaStream::jitter(const Tensor&, const Tensor&, const Tensor&, const RandomKey&, float) {
  fail("jitter is not on cuda yet");
}

void CudaStream::norm(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, NormKind, float) {
  fail("norm is not on cuda yet");
}

void CudaStream::norm_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                               const Tensor&, NormKind) {
  fail("norm_backward is not on cuda yet");
}

void CudaStream::activation(const Tensor&, const Tensor&, Activation) {
  fail("activation is not on cuda yet");
}

void CudaStream::activation_backward(const Tensor&, const Tensor&, const Tensor&, Activation) {
  fail("activation_backward is not on cuda yet");
}

void CudaStream::weighted_activation_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                              const Tensor&, const Tensor&, Activation) {
  fail("weighted_activation_backward is not on cuda yet");
}

void CudaStream::embedding(const Tensor&, const Tensor&, const Tensor&, bool, std::int64_t) {
  fail("embedding is not on cuda yet");
}

void CudaStream::embedding_backward(const Tensor&, const Tensor&, const Tensor&, std::int64_t) {
  fail("embedding_backward is not on cuda yet");
}

void CudaStream::cross_entropy(const Tensor&, const Tensor&, const Tensor&, float) {
  fail("cross_entropy is not on cuda yet");
}

void CudaStream::cross_entropy_stats(const Tensor&, const Tensor&, const Tensor&, std::int64_t) {
  fail("cross_entropy_stats is not on cuda yet");
}

void CudaStream::cross_entropy_from_stats(const Tensor&, const Tensor&, const Tensor&, const Tensor&, std::int64_t,
                                          float) {
  fail("cross_entropy_from_stats is not on cuda yet");
}

void CudaStream::adamw(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                       const AdamW&) {
  fail("adamw is not on cuda yet");
}

void CudaStream::sgd(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Sgd&) {
  fail("sgd is not on cuda yet");
}

void CudaStream::clip_factor(const Tensor&, const Tensor&, const Tensor&, float) {
  fail("clip_factor is not on cuda yet");
}

}  // namespace orthant::cuda
