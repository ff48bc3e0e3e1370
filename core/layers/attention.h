// Causal multi-head attention with grouped KV heads: qkv projection, norms of queries and keys, rotary positions, core,
// output projection.
//
// Sources: Ainslie et al., "GQA"; Su et al., "RoFormer"; norms of each head before rotation as Dehghani et al.,
// "Scaling Vision Transformers to 22 Billion Parameters", in the form of Qwen3 (RMSNorm, one weight for all heads);
// one norm over all heads as Muennighoff et al., "OLMoE".
#pragma once

#include <optional>

#include <orthant/part.h>

#include "core/layers/layer.h"

namespace orthant {

struct ModelSettings;
class Entered;  // core/layers/entered.h

// Keys that a token sees on average.
double keys_seen(const Settings& settings, int block);
// The first positions that the tokens of a batch see: in a block with the window, and in one without among others that
// have it (model.full_attention_every). Where all blocks are alike the batch has core_first alone.
const Tensor& first_seen(const DeviceBatch& batch, const Settings& settings, bool window);

// What queries are multiplied by, so that attention's own 1 / sqrt(channels) becomes model.attention_scale.
double query_scale(const ModelSettings& model, std::int64_t head_dim);

enum class QkNormOver { head, all };

struct MultiHeadKeys {
  bool qk_norm = false;                        // queries and keys are normalised
  QkNormOver qk_norm_over = QkNormOver::head;  // each head by itself (Qwen3), or all heads as one row (OLMoE)
  bool qk_norm_rotated = false;                // after they are rotated (Hunyuan), not before
  bool biases = false;                         // of the projections to queries, keys and values
  bool output_bias = false;                    // of the projection behind attention
  bool attention_sinks = false;                // a learned score of each head joins its softmax, with no value
  double attention_softcap = 0;                // scores s become cap tanh(s / cap) (Gemma 2); 0: they stay
  static const Keys<MultiHeadKeys>& keys();
};

// The kind "multi_head". Reads MultiHeadKeys, RotaryKeys, and of the settings model.heads, kv_heads, head_dim,
// attention_scale, positions, sliding_window and full_attention_every (which the batch carries:
// DeviceBatch::core_first).
class MultiHeadAttention final : public AttentionPart {
 public:
  std::vector<KindKey> keys() const override;
  std::vector<Refusal> refusals(const Settings& settings) const override;
  std::vector<ParamSpec> parameters(const PartPlace& place) const override;
  double flops(const Settings& settings, int block) const override;
  std::unique_ptr<PartLayer> make(const PartPlace& place, const Parameters& parameters,
                                  const Plan& plan) const override;
};

class Attention final : public PartLayer {
 public:
  // With the place's stem: `stem`.q_proj.weight, .k_proj, .v_proj, .o_proj; with biases .q_proj.bias and so on, and
  // .o_proj.bias; with norms .q_norm.weight and .k_norm.weight; with sinks .sinks.
  Attention(const Parameters& parameters, const PartPlace& place, const Plan& plan);

  Tensor forward(const StepContext& ctx, const Tensor& n, Saved& saved) const override;
  Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) const override;

 private:
  struct Heads {
    Tensor q, k, v;  // [T, h c], [T, kv c] twice
  };
  // Some of the three projections as one matrix product.
  struct Projection {
    ParamMatrix weight;               // [n, d]
    std::optional<ParamMatrix> bias;  // [n, 1]
  };
  AttentionShape shape(const StepContext& ctx) const;
  HeadSinks sinks(const StepContext& ctx, bool backward) const;
  RotaryShape rotary(std::int64_t heads, std::int64_t kv_heads, bool rotate) const;
  Tensor projected(const StepContext& ctx, const Tensor& x, const Projection& by) const;
  Tensor projected_backward(const StepContext& ctx, const Tensor& dy, const Entered& x, const Projection& by) const;
  bool learns_projections() const;
  Heads project(const StepContext& ctx, const Tensor& x) const;                             // x [T, d]
  Tensor project_backward(const StepContext& ctx, const Heads& d, const Entered& x) const;  // dx [T, d]
  bool rotates_first() const { return !q_norm_.has_value() || norm_rotated_; }
  // Normalises each head, or all of a token, then rotates them where they are not yet.
  Tensor normed(const StepContext& ctx, const Tensor& heads, const ParamRef& weight, Saved& saved) const;
  Tensor normed_backward(const StepContext& ctx, const Tensor& d, const ParamRef& weight, Saved& saved) const;

  // Where ranks share key heads, the gradients of k and v are summed over more of them than q's: then these lie in
  // different buffers, and q_ is a matrix of its own. Else qkv_ serves all.
  std::optional<Projection> qkv_;            // n = (h + 2 kv) c
  std::optional<Projection> q_, kv_;         // n = h c, n = 2 kv c
  std::optional<ParamRef> q_norm_, k_norm_;  // [c], or [h c] and [kv c] over all heads
  ParamRef out_;                             // [d, h c]
  std::optional<ParamRef> out_bias_;         // [d]
  std::optional<ParamRef> sinks_;            // [h]
  std::int64_t heads_ = 0, kv_heads_ = 0, head_dim_ = 0;
  RotaryShape rotary_;  // of no heads; theta is 0 where positions are learned
  bool window_;
  int block_;
  bool norm_all_ = false, norm_rotated_ = false;
  float query_scale_ = 1, softcap_ = 0;
  float eps_ = 0;
  std::int64_t core_heads_ = 0, core_kv_heads_ = 0, core_first_head_ = 0;
  std::int64_t repeats_ = 1;  // of each key head on its way into the core
};

}  // namespace orthant
