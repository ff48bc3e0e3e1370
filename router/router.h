// The router of one layer, from normalised activations to seats: logits, noise, gate, capacity, losses, counters; and
// its backward pass. What the experts do with the seats is in experts/experts.h.
//
// Sources: Fedus et al., "Switch Transformers" (top-1); Lepikhin et al., "GShard" (top-2, groups, capacity); Jiang et
// al., "Mixtral of Experts" (top-k).
//
// Rows: the router sees tokens_R, those of region router, and experts get the choices of tokens_X, those of region
// experts. Where these are parts of a group of tokens, the group is routed whole: T tokens, on each of the ranks that
// hold some of it (routing_layout.h). Else all three are the same.
#pragma once

#include <string>

#include "core/layers/layer.h"
#include "core/layers/parameter_store.h"
#include "router/routing_layout.h"

namespace orthant {

// Who goes where. Small beside the activations, and not to be decided twice: counters and losses are added once.
struct Routing {
  // Of whole groups of tokens, as Stream::gate.
  Tensor logits, expert, lse, chosen;
  // Of the tokens whose experts this rank asks: row [tokens_X, K], source [R, 1] and offset [E + 1] as
  // Stream::dispatch_plan, weight [tokens_X, K] past the boundary. R is the number of packed rows where the host
  // knows it, else what is enough.
  Dispatch dispatch;
  ExchangePlan plan;  // where rows travel
  Tensor unplanned;   // i32 [E]: packed rows for each expert, as long as an exchange has not planned with them

  void save(Saved& to) const;
  static Routing take(Saved& from);
};

class Router {
 public:
  // `stem`.gate.weight [E, d]. `layer` is the block's layer number. Collective over the world the first time.
  Router(const ParamStore& store, const std::string& stem, Plan& plan, int layer);

  // n, of region norm -> [tokens_R, d]: past the boundary, and with noise in training (Switch).
  Tensor input(const StepContext& ctx, const Tensor& n) const;
  // input: of the method above. In training it counts, and adds to the losses.
  Routing route(const StepContext& ctx, const Tensor& input) const;
  // dweight f32 [tokens_X, K]: the gradient of Routing::dispatch.weight before its boundary. Adds the router's share to
  // dn, of region norm.
  void backward(const StepContext& ctx, const Tensor& dn, const Tensor& dweight, const Routing& routing,
                const Tensor& input) const;

 private:
  GateConfig gate_config(const StepContext& ctx) const;
  RandomKey key(const StepContext& ctx, Purpose purpose) const;
  Tensor logits(const StepContext& ctx, const Tensor& input) const;  // f32 [T, E]
  // whole_weight f32 [T, K]: Stream::gate's.
  void seat(const StepContext& ctx, Routing& routing, const Tensor& whole_weight) const;
  void count(const StepContext& ctx, const Tensor& kept, const Tensor& dropped) const;

  ParamRef weight_;     // [E, d]
  int layer_, routed_;  // its number among all layers, and among the routed ones
  RoutingLayout layout_;
};

}  // namespace orthant
