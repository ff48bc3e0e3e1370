// The Mixture-of-Experts layer: gate, capacity, pack, exchange, grouped expert FFN, exchange back, combine.
//
// Sources: Fedus et al., "Switch Transformers" (top-1); Lepikhin et al., "GShard" (top-2, groups, capacity); Jiang et
// al., "Mixtral of Experts" (top-k). A token that no expert keeps contributes zero here: the block adds its residual.
#pragma once

#include <optional>

#include "core/layers/ffn.h"
#include "core/layers/layer.h"
#include "core/parameters.h"

namespace orthant {

class MoeLayer {
 public:
  // `stem`.gate.weight, .experts.N.*, .shared_experts.*. `layer` is the block's layer number.
  MoeLayer(const ParamStore& store, const std::string& stem, const Plan& plan, int layer);

  Tensor forward(const StepContext& ctx, const Tensor& n, Saved& saved) const;
  Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const;

 private:
  struct Weights {
    Tensor in, out;  // [local experts, n, d], [local experts, d, f]
  };
  Weights view(const Tensor& flat) const;
  GateConfig gate_config(const StepContext& ctx) const;
  RandomKey key(const StepContext& ctx, Purpose purpose) const;
  void count(const StepContext& ctx, const std::vector<std::int32_t>& kept,
             const std::vector<std::int32_t>& dropped) const;

  ParamRef router_;  // [E, d]
  ParamGroup* experts_;
  int layer_;
  std::optional<Ffn> shared_;
  Activation activation_;
  std::int64_t local_experts_, hidden_, width_;  // hidden: n = f or 2f, width: f
};

}  // namespace orthant
