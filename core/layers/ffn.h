// The dense feed-forward network: [T, d] -> activation of [T, f] -> [T, d]. Also a routed layer's shared experts.
#pragma once

#include "core/layers/layer.h"

namespace orthant {

class Ffn {
 public:
  // Input matrices start at parameter `index` of `group` (gate and up back to back for SwiGLU); the output one follows.
  Ffn(ParamGroup& group, std::size_t index, const Settings& settings);

  Tensor forward(const StepContext& ctx, const Tensor& n, Saved& saved) const;
  Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const;

 private:
  Tensor in(const Tensor& flat) const;  // [n, d], n = f or 2f
  ParamGroup& group_;
  std::size_t first_, out_;
  Activation activation_;
};

}  // namespace orthant
