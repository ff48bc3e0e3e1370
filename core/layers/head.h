// Final norm, logits and softmax cross-entropy, fused: logits exist for one chunk of tokens at a time, and their
// gradient is computed in the forward pass, where the one scale of the loss is already known.
#pragma once

#include "core/layers/norm.h"

namespace orthant {

// The ranks that hold the other slices of the vocabulary; null: there are none. Collective over the world the first
// time.
Group* vocabulary_group(Plan& plan);

class HeadLayer final : public Layer {
 public:
  HeadLayer(const ParamStore& store, Plan& plan);
  // Adds to ctx.sums.loss; returns an undefined tensor. In training also the gradients of the logits' matrix.
  Tensor forward(const StepContext& ctx, const Tensor& x, Saved& saved) override;
  // f32 [T, V_r] of all tokens at once.
  Tensor logits(const StepContext& ctx, const Tensor& x, Saved& saved) const;
  bool grads_in_forward() const override { return true; }
  // dy is ignored. Returns dx [T, d].
  Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) override;

 private:
  Tensor normed(const StepContext& ctx, const Tensor& x, Saved& saved) const;
  // Of rows [begin, begin + rows) of normed's.
  Tensor logits_of(const StepContext& ctx, const Tensor& n, std::int64_t begin, std::int64_t rows) const;
  // logits [T, V_r] -> their gradient; loss [T].
  void cross_entropy(const StepContext& ctx, const Tensor& loss, const Tensor& logits, const Tensor& label) const;

  Norm norm_;
  ParamRef matrix_;  // [V_r, d], V_r of the vocabulary; the embedding's where they are tied
  Group* slices_;    // vocabulary_group
};

}  // namespace orthant
