// A norm's parameters and its two passes, shared by blocks and head.
#pragma once

#include "core/layers/layer.h"

namespace orthant {

class Norm {
 public:
  // The norm whose weight is parameter `index` of `group` (and its bias, for LayerNorm, index + 1).
  Norm(ParamGroup& group, std::size_t index, const Settings& settings)
      : group_(group), index_(index), kind_(settings.model.norm), eps_(static_cast<float>(settings.model.norm_eps)) {}

  std::size_t parameters() const { return kind_ == NormKind::layernorm ? 2 : 1; }

  // Saves x and the statistics.
  Tensor forward(const StepContext& ctx, const Tensor& x, Saved& saved) const;
  // dx += .
  void backward(const StepContext& ctx, const Tensor& dx, const Tensor& dy, Saved& saved) const;

 private:
  ParamGroup& group_;
  std::size_t index_;
  NormKind kind_;
  float eps_;
};

}  // namespace orthant
