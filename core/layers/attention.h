// Causal multi-head attention with grouped KV heads: qkv projection, rotary positions, core, output projection.
#pragma once

#include "core/layers/layer.h"
#include "core/parameters.h"

namespace orthant {

class Attention {
 public:
  // `stem`.q_proj.weight, .k_proj, .v_proj, .o_proj.
  Attention(const ParamStore& store, const std::string& stem, const Plan& plan);

  // n [T, d], the norm's output, to [T, d], before dropout and residual.
  Tensor forward(const StepContext& ctx, const Tensor& n, Saved& saved) const;
  Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const;

 private:
  AttentionShape shape(const StepContext& ctx) const;

  ParamMatrix qkv_;  // [(h + 2 kv) c, d]
  ParamRef out_;     // [d, h c]
  RotaryShape rotary_;
  std::int64_t core_heads_ = 0, core_kv_heads_ = 0;
  std::int64_t repeats_ = 1;  // of each key head on its way into the core
};

}  // namespace orthant
