// Operations still to be written: each fails by name. Delete an entry here as you implement it.
#include "core/cpu/cpu_stream.h"

namespace orthant {
namespace {
[[noreturn]] void unfinished(const char* name) {
  fail("the CPU operation {} is not implemented", name);
}
}  // namespace

void CpuStream::attention(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                          const AttentionShape&) {
  unfinished("attention");
}
void CpuStream::attention_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                   const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                   const AttentionShape&) {
  unfinished("attention_backward");
}

}  // namespace orthant
