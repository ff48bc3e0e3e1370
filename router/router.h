// The router of one layer, from normalised activations to seats: logits, noise, gate, capacity, losses, counters; and
// its backward pass. What the experts do with the seats is in experts/experts.h.
//
// Which experts a token goes to is the gate's (gate.h; NAME_gate.cpp); everything else is here, for every gate alike.
//
// Balance over a batch (moe.balance_over): the loss's f_e is counted over the tokens of a micro-batch on all ranks (Qiu
// et al., "Demons in the Detail", 2025), by one sum of E counts for each layer and micro-batch. It is the
// batch's where a batch is one micro-batch, and the layout does not matter then; several have a balance each.
//
// What a gate's weights are multiplied by (moe.weight_scale, DeepSeek's routed_scaling_factor) is here too, so that it
// is the same for every gate.
//
// Rows: the router sees tokens_R, those of region router, and experts get the choices of tokens_X, those of region
// experts. All three are the same, unless they are parts of a group of tokens: the group is then routed whole, T
// tokens, on each of the ranks that hold some of it (routing_layout.h).
#pragma once

#include <optional>
#include <string>

#include <orthant/gate.h>

#include "core/layers/layer.h"
#include "core/layers/parameter_store.h"
#include "router/routing_layout.h"

namespace orthant {

// Who goes where. Small beside the activations, and not to be decided twice: counters and losses are added once.
struct Routing {
  // For whole groups of tokens, as GateChoice.
  Tensor logits, expert, lse, chosen;
  // For the tokens whose experts this rank asks: row [tokens_X, K], source [R, 1] and offset [E + 1] as
  // Stream::dispatch_plan, weight [tokens_X, K] past the boundary. R is the number of packed rows where the host
  // knows it, else what is enough.
  Dispatch dispatch;
  // With experts that copy, for the tokens of region norm, f32 [tokens_N, K]: 1 for a choice of one of them, else 0;
  // and the weights of those choices, else 0. Undefined otherwise.
  Tensor copies, copy_weight;
  ExchangePlan plan;  // where rows travel
  Tensor unplanned;   // i32 [E]: packed rows for each expert, as long as an exchange has not planned with them

  void save(Saved& to) const;
  static Routing take(Saved& from);
};

class Router {
 public:
  // Link::router.gate.weight [E, d]; with moe.router_bias .gate.bias [E]. Collective over the world the first time.
  Router(const ParamStore& store, Plan& plan, const Link& link);

  // n, of region norm -> [tokens_R, d]: past the boundary, and with noise in training (Switch).
  Tensor input(const StepContext& ctx, const Tensor& n) const;
  // input: of the method above. In training it counts, and adds to the losses.
  Routing route(const StepContext& ctx, const Tensor& input) const;
  // dweight f32 [tokens_X, K]: the gradient of Routing::dispatch.weight before its boundary. dcopy_weight: that of
  // Routing::copy_weight, if there is one. Adds the router's share to dn, of region norm.
  void backward(const StepContext& ctx, const Tensor& dn, const Tensor& dweight, const Tensor& dcopy_weight,
                const Routing& routing, const Tensor& input) const;

 private:
  // The gate's, with the capacity of this step.
  GateConfig config(const StepContext& ctx) const;
  // All tokens of a micro-batch are one group to a balance loss that knows the batch's load.
  GateConfig balance_config(const StepContext& ctx, std::int64_t tokens) const;
  GateInput gate_input(const StepContext& ctx, const Tensor& logits) const;
  RandomKey key(const StepContext& ctx, Purpose purpose) const;
  Tensor logits(const StepContext& ctx, const Tensor& input) const;  // f32 [T, E]
  void scale(const StepContext& ctx, const Tensor& weights) const;
  // whole_weight f32 [T, K]: the gate's.
  void seat(const StepContext& ctx, Routing& routing, const Tensor& whole_weight) const;
  // The choices of experts that compute, i32 [T, K]: those of the others are counted in `counts` i32 [2, columns].
  Tensor computing_choices(const StepContext& ctx, Routing& routing, const Tensor& whole_weight,
                           const Tensor& counts) const;
  // whole f32 [T, E] -> [tokens_R, E] in the compute dtype.
  Tensor own_gradient(const StepContext& ctx, const Tensor& whole) const;
  // Adds to StepSums::router_gradients. dweight f32 [T, K]. rest: the cause whose share is what the others leave of the
  // whole, which has been added there; -1: each has a product of its own.
  void split_gradient(const StepContext& ctx, const Tensor& dweight, const GateChoice& made, const Routing& r,
                      const Tensor& input, int rest) const;

  const Gate& gate_;
  ParamRef weight_;               // [E, d]
  std::optional<ParamRef> bias_;  // [E]
  Tensor state_;                  // of the gate, for this layer; undefined where it keeps none
  int block_, routed_;            // its number among all blocks, and among the routed ones
  std::int64_t group_tokens_;     // of a group in a further token space; 0: as the gate says
  RoutingLayout layout_;
};

}  // namespace orthant
