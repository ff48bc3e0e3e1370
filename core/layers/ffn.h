// The dense feed-forward network: [T, d] -> activation of [T, f] -> [T, d]. Also a routed layer's shared experts.
#pragma once

#include "core/layers/layer.h"
#include "core/layers/parameter_store.h"

namespace orthant {

class Ffn {
 public:
  // `stem`.up_proj.weight, .down_proj.weight and, for SwiGLU, .gate_proj.weight.
  Ffn(const ParamStore& store, const std::string& stem, const Settings& settings);

  Tensor forward(const StepContext& ctx, const Tensor& n, Saved& saved) const;
  Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const;

 private:
  Tensor activated(const StepContext& ctx, const Tensor& h) const;  // [T, f] of [T, n]
  ParamMatrix in_;                                                  // [n, d], n = f or 2f
  ParamRef out_;                                                    // [d, f]
  Activation activation_;
};

}  // namespace orthant
