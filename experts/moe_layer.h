// The Mixture-of-Experts layer: gate, capacity, pack, exchange, grouped expert FFN, exchange back, combine.
//
// Sources: Fedus et al., "Switch Transformers" (top-1); Lepikhin et al., "GShard" (top-2, groups, capacity); Jiang et
// al., "Mixtral of Experts" (top-k). A token that no expert keeps contributes zero here: the block adds its residual.
//
// Rows: n and the result are those of region norm; the router sees tokens_R, those of region router, and experts get
// the choices of tokens_X, those of region experts. Where these are parts of a group of tokens, the group is routed
// whole: T tokens, on each of the ranks that hold some of it (routing_layout.h). Else all three are the same.
#pragma once

#include <optional>
#include <utility>

#include "core/layers/ffn.h"
#include "core/layers/layer.h"
#include "core/layers/parameter_store.h"
#include "experts/routed_experts.h"
#include "router/routing_layout.h"

namespace orthant {

class MoeLayer {
 public:
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

  // `stem`.gate.weight, .experts.N.*, .shared_experts.*. `layer` is the block's layer number.
  MoeLayer(const ParamStore& store, const std::string& stem, Plan& plan, int layer);

  // decided: empty, and then filled; or what an earlier forward pass of the same micro-batch decided.
  Tensor forward(const StepContext& ctx, const Tensor& n, std::optional<Routing>& decided, Saved& saved) const;
  Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const;

 private:
  GateConfig gate_config(const StepContext& ctx) const;
  RandomKey key(const StepContext& ctx, Purpose purpose) const;
  void count(const StepContext& ctx, const Tensor& kept, const Tensor& dropped) const;

  Tensor router_input(const StepContext& ctx, const Tensor& n) const;    // [tokens_R, d]
  Routing route(const StepContext& ctx, const Tensor& router_in) const;  // counts, and adds to the losses
  // whole_weight f32 [T, K]: Stream::gate's.
  void seat(const StepContext& ctx, Routing& routing, const Tensor& whole_weight) const;
  // Plans the exchange of rows, where that is left to do.
  Tensor run_experts(const StepContext& ctx, const Tensor& n, Routing& routing, Saved& saved) const;
  // The gradients of run_experts: of n, and of the weights [tokens_X, K].
  std::pair<Tensor, Tensor> run_experts_backward(const StepContext& ctx, const Tensor& dy, const Routing& routing,
                                                 Saved& saved) const;
  // Adds the router's share to dn.
  void route_backward(const StepContext& ctx, const Tensor& dn, const Tensor& dweight, const Routing& routing,
                      const Tensor& router_in) const;

  ParamRef router_;  // [E, d]
  RoutedExperts experts_;
  int layer_, routed_;  // its number among all layers, and among the routed ones
  RoutingLayout layout_;
  std::optional<Ffn> shared_;
};

}  // namespace orthant
