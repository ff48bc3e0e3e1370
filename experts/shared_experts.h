// The experts that every token of a routed layer visits: a dense FFN. Where each token weighs what they make of it, the
// weight is sigmoid(n . w) (Qwen Team, "Qwen2 Technical Report", 2024).
#pragma once

#include <optional>
#include <string>

#include "core/layers/ffn.h"
#include "core/layers/layer.h"
#include "core/layers/parameter_store.h"

namespace orthant {

class SharedExperts {
 public:
  // `stem`.shared_experts.* and, with moe.shared_gate, `stem`.shared_expert_gate.weight.
  SharedExperts(const ParamStore& store, const std::string& stem, const Settings& settings);

  // y += what they make of n; both [T, d], of region norm.
  void add(const StepContext& ctx, const Tensor& y, const Tensor& n, Saved& saved) const;
  // The gradient of n.
  Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const;

 private:
  Ffn ffn_;
  std::optional<ParamRef> gate_;  // [1, d]
};

}  // namespace orthant
