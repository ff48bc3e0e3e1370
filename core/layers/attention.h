// Causal multi-head attention with grouped KV heads: qkv projection, rotary positions, core, output projection.
#pragma once

#include <optional>

#include "core/layers/layer.h"
#include "core/layers/parameter_store.h"

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
  struct Heads {
    Tensor q, k, v;  // [T, h c], [T, kv c] twice, rotated
  };
  RotaryShape queries() const { return {rotary_.heads, 0, rotary_.head_dim, rotary_.theta}; }
  RotaryShape keys() const { return {0, rotary_.kv_heads, rotary_.head_dim, rotary_.theta}; }
  Heads project(const StepContext& ctx, const Tensor& x) const;                            // x [T, d]
  Tensor project_backward(const StepContext& ctx, const Heads& d, const Tensor& x) const;  // dx [T, d]

  // Where ranks share key heads, the gradients of k and v are summed over more of them than q's: then these lie in
  // different buffers, and q_ is a matrix of its own. Else qkv_ serves all.
  std::optional<ParamMatrix> qkv_;     // [(h + 2 kv) c, d]
  std::optional<ParamMatrix> q_, kv_;  // [h c, d], [2 kv c, d]
  ParamRef out_;                       // [d, h c]
  RotaryShape rotary_;
  std::int64_t core_heads_ = 0, core_kv_heads_ = 0;
  std::int64_t repeats_ = 1;  // of each key head on its way into the core
};

}  // namespace orthant
