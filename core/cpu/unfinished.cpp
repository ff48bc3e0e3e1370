// Operations still to be written: each fails by name. Delete an entry here as you implement it.
#include "core/cpu/cpu_stream.h"

namespace orthant {
namespace {
[[noreturn]] void unfinished(const char* name) {
  fail("the CPU operation {} is not implemented", name);
}
}  // namespace

void CpuStream::init_normal(const Tensor&, const RandomKey&, float, const SliceMap&) {
  unfinished("init_normal");
}
void CpuStream::dropout(const Tensor&, const Tensor&, const Tensor&, const RandomKey&, float, const SliceMap&) {
  unfinished("dropout");
}
void CpuStream::jitter(const Tensor&, const Tensor&, const Tensor&, const RandomKey&, float) {
  unfinished("jitter");
}
void CpuStream::norm(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, NormKind, float) {
  unfinished("norm");
}
void CpuStream::norm_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                              const Tensor&, NormKind) {
  unfinished("norm_backward");
}
void CpuStream::split_rotary(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                             const RotaryShape&) {
  unfinished("split_rotary");
}
void CpuStream::merge_rotary_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                      const RotaryShape&) {
  unfinished("merge_rotary_backward");
}
void CpuStream::attention(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                          const AttentionShape&) {
  unfinished("attention");
}
void CpuStream::attention_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                   const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                   const AttentionShape&) {
  unfinished("attention_backward");
}
void CpuStream::activation(const Tensor&, const Tensor&, Activation) {
  unfinished("activation");
}
void CpuStream::activation_backward(const Tensor&, const Tensor&, const Tensor&, Activation) {
  unfinished("activation_backward");
}
void CpuStream::embedding(const Tensor&, const Tensor&, const Tensor&, bool) {
  unfinished("embedding");
}
void CpuStream::embedding_backward(const Tensor&, const Tensor&, const Tensor&) {
  unfinished("embedding_backward");
}
void CpuStream::cross_entropy(const Tensor&, const Tensor&, const Tensor&, float) {
  unfinished("cross_entropy");
}
void CpuStream::adamw(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                      const AdamW&) {
  unfinished("adamw");
}
void CpuStream::sgd(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Sgd&) {
  unfinished("sgd");
}
void CpuStream::clip_factor(const Tensor&, const Tensor&, float) {
  unfinished("clip_factor");
}

}  // namespace orthant
