// Operations still to be written: each fails by name. Delete an entry here as you implement it.
#include "core/cpu/cpu_stream.h"

namespace orthant {
namespace {
[[noreturn]] void unfinished(const char* name) {
  fail("the CPU operation {} is not implemented", name);
}
}  // namespace

Device& CpuStream::device() const {
  unfinished("device");
}
std::shared_ptr<Event> CpuStream::record() {
  unfinished("record");
}
void CpuStream::wait(const std::shared_ptr<Event>&) {
  unfinished("wait");
}
void CpuStream::host(std::function<void()>) {
  unfinished("host");
}
void CpuStream::synchronize() {
  unfinished("synchronize");
}
void CpuStream::copy(const Tensor&, const Tensor&) {
  unfinished("copy");
}
void CpuStream::cast(const Tensor&, const Tensor&) {
  unfinished("cast");
}
void CpuStream::fill(const Tensor&, double) {
  unfinished("fill");
}
void CpuStream::upload(const Tensor&, const void*) {
  unfinished("upload");
}
void CpuStream::download(void*, const Tensor&) {
  unfinished("download");
}
void CpuStream::copy_rows(const Tensor&, const Tensor&, std::span<const RowRun>) {
  unfinished("copy_rows");
}
void CpuStream::add(const Tensor&, const Tensor&) {
  unfinished("add");
}
void CpuStream::scale(const Tensor&, float) {
  unfinished("scale");
}
void CpuStream::sum_squares(const Tensor&, const Tensor&) {
  unfinished("sum_squares");
}
void CpuStream::sum(const Tensor&, const Tensor&) {
  unfinished("sum");
}
void CpuStream::init_normal(const Tensor&, const RandomKey&, float, const SliceMap&) {
  unfinished("init_normal");
}
void CpuStream::dropout(const Tensor&, const Tensor&, const Tensor&, const RandomKey&, float, const SliceMap&) {
  unfinished("dropout");
}
void CpuStream::jitter(const Tensor&, const Tensor&, const Tensor&, const RandomKey&, float) {
  unfinished("jitter");
}
void CpuStream::gemm(const Tensor&, const Tensor&, const Tensor&, Gemm) {
  unfinished("gemm");
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
