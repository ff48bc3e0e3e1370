// A norm's parameters and its two passes, shared by blocks and head.
#pragma once

#include <optional>

#include "core/layers/layer.h"
#include "core/layers/parameter_store.h"

namespace orthant {

// Weights of norms are read in fp32 whatever the compute dtype: a few numbers, used in every token.
Tensor norm_weight(const StepContext& ctx, const Tensor& w);
// What a norm multiplies by: its weight, or 1 + it (model.norm_plus_one).
Tensor norm_factor(const StepContext& ctx, const Tensor& w);

class Norm {
 public:
  // The norm `stem`.weight (and, for LayerNorm, `stem`.bias).
  Norm(const ParamStore& store, const std::string& stem, const Settings& settings);

  // Saves x and the statistics.
  Tensor forward(const StepContext& ctx, const Tensor& x, Saved& saved) const;
  // dx += .
  void backward(const StepContext& ctx, const Tensor& dx, const Tensor& dy, Saved& saved) const;

 private:
  ParamRef weight_;
  std::optional<ParamRef> bias_;
  NormKind kind_;
  float eps_;
};

}  // namespace orthant
