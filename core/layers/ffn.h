// The dense feed-forward network: [T, d] -> activation of [T, f] -> [T, d]. Also a routed layer's shared experts.
#pragma once

#include <orthant/part.h>

#include "core/layers/layer.h"

namespace orthant {

// The kind "mlp". Settings: model.d_ff, model.activation.
class Mlp final : public FfnPart {
 public:
  std::vector<ParamSpec> parameters(const PartPlace& place) const override;
  double flops(const Settings& settings, int block) const override;
  std::unique_ptr<PartLayer> make(const PartPlace& place, const Parameters& parameters,
                                  const Plan& plan) const override;
};

class Ffn final : public PartLayer {
 public:
  // `stem`.up_proj.weight, .down_proj.weight and, for SwiGLU, .gate_proj.weight.
  Ffn(const Parameters& parameters, const std::string& stem, const Settings& settings);

  Tensor forward(const StepContext& ctx, const Tensor& n, Saved& saved) const override;
  Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const override;

 private:
  Tensor activated(const StepContext& ctx, const Tensor& h) const;  // [T, f] of [T, n]
  ParamMatrix in_;                                                  // [n, d], n = f or 2f
  ParamRef out_;                                                    // [d, f]
  Activation activation_;
};

}  // namespace orthant
