// Causal multi-head attention with grouped KV heads: qkv projection, rotary positions, core, output projection.
#pragma once

#include "core/layers/layer.h"

namespace orthant {

class Attention {
 public:
  // q, k, v and o projections are parameters index .. index + 3 of `group`; q, k and v lie back to back.
  Attention(ParamGroup& group, std::size_t index, const Plan& plan);

  // n [T, d], the norm's output, to [T, d], before dropout and residual.
  Tensor forward(const StepContext& ctx, const Tensor& n, Saved& saved) const;
  Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const;

 private:
  Tensor qkv_weight() const;
  AttentionShape shape(const StepContext& ctx) const;

  ParamGroup& group_;
  std::size_t index_;
  RotaryShape rotary_;
};

}  // namespace orthant
