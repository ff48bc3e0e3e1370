// Causal attention whose keys and values are made of one narrow row a token, and its queries too, if asked for.
//
//   q           = q_b norm(q_a x), or q_proj x; of each head the last channels are rotated
//   c | k_rope  = kv_a x; k_rope is rotated, and is part of the key of every head
//   k_nope | v  = kv_b norm(c), head by head
//   y           = o_proj softmax((q_nope k_nope' + q_rope k_rope') / sqrt(channels)) v
// The attention core has heads of one width: values are padded with zeros to that of keys.
//
// Source: DeepSeek-AI, "DeepSeek-V2" (2024), section 2.1, as transformers' DeepseekV3Attention computes it in training.
#pragma once

#include <optional>
#include <utility>

#include <orthant/part.h>

#include "core/layers/latent_core.h"
#include "core/layers/layer.h"

namespace orthant {

struct LatentKeys {
  std::int64_t q_lora_rank = 0;       // width of compressed queries; 0: not compressed
  std::int64_t kv_lora_rank = 0;      // width of compressed keys and values
  std::int64_t qk_nope_head_dim = 0;  // channels of a query and key head that are not rotated
  std::int64_t qk_rope_head_dim = 0;  // and those that are, behind them; a key's serve all heads
  std::int64_t v_head_dim = 0;        // channels of a value head
  double latent_norm_eps = 0;         // of the norms; 0: norm_eps
  static const Keys<LatentKeys>& keys();
};

// The kind "latent". Reads LatentKeys, RotaryKeys, and of the settings model.heads, norm_eps, positions,
// attention_scale, sliding_window, full_attention_every. An axis that divides heads divides q_b, kv_b and o; its ranks
// all make the narrow rows.
class MultiHeadLatentAttention final : public AttentionPart {
 public:
  std::vector<KindKey> keys() const override;
  std::vector<Refusal> refusals(const Settings& settings) const override;
  std::int64_t head_dim(const Settings& settings) const override;
  std::int64_t rotary_channels(const Settings& settings) const override;
  std::vector<ParamSpec> parameters(const PartPlace& place) const override;
  double flops(const Settings& settings, int block) const override;
  std::unique_ptr<PartLayer> make(const PartPlace& place, const Parameters& parameters,
                                  const Plan& plan) const override;
};

class LatentAttention final : public PartLayer {
 public:
  // With the place's stem: `stem`.q_a_proj.weight, .q_a_layernorm.weight and .q_b_proj.weight, or .q_proj.weight;
  // .kv_a_proj_with_mqa.weight, .kv_a_layernorm.weight, .kv_b_proj.weight, .o_proj.weight.
  LatentAttention(const Parameters& parameters, const PartPlace& place, const Plan& plan);

  Tensor forward(const StepContext& ctx, const Tensor& n, Saved& saved) const override;
  Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const override;

 private:
  AttentionShape shape(const StepContext& ctx) const;
  RotaryShape rotary(std::int64_t heads, std::int64_t plain) const;
  // c [T, r] -> norm(c), which is saved.
  Tensor normed(const StepContext& ctx, const Tensor& c, const ParamRef& weight, Saved& saved) const;
  Tensor normed_backward(const StepContext& ctx, const Tensor& d, const ParamRef& weight, Saved& saved) const;
  Tensor queries(const StepContext& ctx, const Tensor& x, Saved& saved) const;  // x [T, d] -> [T, h c]
  // What keys and values are made of: norm(c) and the rotated k_rope. [T, kv rank], [T, rope]
  std::pair<Tensor, Tensor> narrow(const StepContext& ctx, const Tensor& x, Saved& saved) const;
  LatentCore::Keys widen(const StepContext& ctx, const Tensor& c, const Tensor& k_rope) const;
  // softmax(QK')V of x [T, d]: within its sequences, or to what tokens of earlier passes have left with
  // ctx.sums.latent.
  Tensor attend(const StepContext& ctx, const Tensor& q, const Tensor& x, Saved& saved) const;
  // The gradients of what was made of x, and those of the parameters between.
  struct Latent {
    Tensor q, kv, k_rope;  // [T, q rank], or [T, h c] where queries are not compressed; [T, kv rank]; [T, rope]
  };
  Latent latent_backward(const StepContext& ctx, Tensor dq, const Tensor& dk, const Tensor& dv, Saved& saved) const;

  std::optional<ParamRef> q_down_, q_norm_;  // [q rank, d], [q rank]
  ParamRef q_up_;                            // [h c, q rank], or [h c, d]
  ParamRef kv_down_, kv_norm_, kv_up_;       // [kv rank + rope, d], [kv rank], [h (nope + v), kv rank]
  ParamRef out_;                             // [d, h v]
  bool window_;                              // model.sliding_window holds here
  int block_;
  std::int64_t heads_ = 0, core_heads_ = 0;
  std::int64_t nope_ = 0, rope_ = 0, head_dim_ = 0, v_head_dim_ = 0, kv_rank_ = 0;
  RotaryShape rotary_;      // of no heads
  float score_factor_ = 1;  // beside 1 / sqrt(c)
  float eps_ = 0;
};

}  // namespace orthant
