// The Mixture-of-Experts layer: a router says which tokens go to which experts (router/router.h), the experts compute
// (experts/experts.h). A token that no expert keeps gets zero here: the block adds its residual. A choice of a
// zero-computation expert adds nothing, or the token itself times its weight (moe.zero_expert).
#pragma once

#include "experts/experts.h"
#include "router/router.h"

namespace orthant {

class MoeLayer {
 public:
  // Link::router.gate.weight, .experts.N.*, .shared_experts.*, .shared_expert_gate.weight.
  MoeLayer(const ParamStore& store, Plan& plan, const Link& link);

  // n and the result: [tokens, d], of region norm. StepSums::decisions: what it decides, or has decided, is there.
  Tensor forward(const StepContext& ctx, const Tensor& n, Saved& saved) const;
  Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const;

 private:
  Router router_;
  Experts experts_;
};

}  // namespace orthant
