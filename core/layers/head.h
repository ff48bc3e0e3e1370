// Final norm, logits and softmax cross-entropy, fused: logits exist for one chunk of tokens at a time, and their
// gradient is computed in the forward pass, where the one scale of the loss is already known.
#pragma once

#include "core/layers/norm.h"
#include "core/layers/vocabulary_loss.h"

namespace orthant {

class HeadLayer final : public Layer {
 public:
  HeadLayer(const ParamStore& store, Plan& plan);
  // Adds to ctx.sums.loss; returns an undefined tensor. In training also the gradients of the logits' matrix, by the
  // loss with the teacher where there is one (ctx.sums.teacher).
  Tensor forward(const StepContext& ctx, const Tensor& x, Saved& saved) override;
  // f32 [T, V_r] of all tokens at once.
  Tensor logits(const StepContext& ctx, const Tensor& x, Saved& saved) const;
  bool grads_in_forward() const override { return true; }
  const ParamRef* overwritten() const override { return matrix_.wants_grad() ? &matrix_ : nullptr; }
  // dy is ignored. Returns dx [T, d].
  Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) override;

  // x [T, d] normed, all tokens of the head.
  Tensor normed(const StepContext& ctx, const Tensor& x, Saved& saved) const;
  // f32 [rows, V_r] of rows [begin, begin + rows) of normed's.
  Tensor logits_of(const StepContext& ctx, const Tensor& n, std::int64_t begin, std::int64_t rows) const;

 private:
  Norm norm_;
  ParamRef matrix_;  // [V_r, d], V_r of the vocabulary; the embedding's where they are tied
  VocabularyLoss cross_entropy_;
};

}  // namespace orthant
