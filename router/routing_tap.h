// RoutingTap: what looks on while routers decide. It changes nothing.
#pragma once

#include <orthant/gate.h>
#include <orthant/step_context.h>

namespace orthant {

// Thread safety: one per rank; not shared.
class RoutingTap {
 public:
  virtual ~RoutingTap() = default;
  // A routed layer of this rank's stage, by its number among the routed ones of the model, has decided about a
  // micro-batch, in training or not. Tensors are for whole groups of tokens, and stay as they are while somebody holds
  // them. Several ranks may see the same tokens: those count them that Plan::counts_tokens(Region::router, true) says.
  // It may enqueue work on ctx.stream.
  virtual void decided(const StepContext& ctx, int routed, const GateInput& from, const GateChoice& made) = 0;
};

}  // namespace orthant
