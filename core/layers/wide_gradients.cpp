#include "core/layers/wide_gradients.h"

#include <utility>

namespace orthant {

void WideGradients::widen(ParamGroup& group, Device& device) {
  if (group.grad_dtype == DType::f32) {
    return;
  }
  const MemoryScope as(device, MemoryKind::gradients);
  Tensor wide = device.empty(DType::f32, {group.elements});
  kept_[group.id] = {&group, std::exchange(group.grad, std::move(wide)), std::exchange(group.grad_empty, true)};
}

void WideGradients::round(ParamGroup& group, Stream& s) {
  auto node = kept_.extract(group.id);
  if (node.empty()) {
    return;
  }
  Kept& kept = node.mapped();
  const Tensor narrow = kept.grad.slice(0, {group.elements});
  if (kept.empty) {
    s.cast(narrow, group.grad);
  } else {
    s.add(narrow, group.grad);
  }
  group.grad = std::move(kept.grad);
}

void WideGradients::drop() {
  for (auto& [id, kept] : kept_) {
    kept.group->grad = std::move(kept.grad);
  }
  kept_.clear();
}

}  // namespace orthant
