// The Mixture-of-Experts layer: a router says which tokens go to which experts (router/router.h), the experts compute
// (experts/experts.h). A token that no expert keeps gets zero here: the block adds its residual. A choice of a
// zero-computation expert adds nothing, or the token itself times its weight (moe.zero_expert).
#pragma once

#include <optional>
#include <string>

#include "experts/experts.h"
#include "router/router.h"

namespace orthant {

class MoeLayer {
 public:
  // `stem`.gate.weight, .experts.N.*, .shared_experts.*, .shared_expert_gate.weight. `layer` is the block's layer
  // number.
  MoeLayer(const ParamStore& store, const std::string& stem, Plan& plan, int layer);

  // n and the result: [tokens, d], of region norm. decided: empty, and then filled; or what an earlier forward pass of
  // the same micro-batch decided.
  Tensor forward(const StepContext& ctx, const Tensor& n, std::optional<Routing>& decided, Saved& saved) const;
  Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const;

 private:
  Router router_;
  Experts experts_;
};

}  // namespace orthant
