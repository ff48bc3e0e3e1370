// Final norm and logits, and what the model learns from them (orthant/objective.h).
#pragma once

#include "core/layers/norm.h"
#include "core/layers/output_matrix.h"

namespace orthant {

class HeadLayer final : public Layer {
 public:
  HeadLayer(const ParamStore& store, Plan& plan, const Link& link);
  // Adds to the sums of the first objective, or to ctx.sums.loss where there is none; in training also to the gradient
  // of the logits' matrix. Returns x normed, where layers behind want it.
  Bundle forward(const StepContext& ctx, const Bundle& x, Saved& saved) override;
  // f32 [T, V_r] of all tokens at once.
  Tensor logits(const StepContext& ctx, const Tensor& x, Saved& saved) const;
  std::vector<ParamGroup*> grown_in_forward() const override { return groups_; }
  const ParamRef* overwritten() const override { return output_.matrix().wants_grad() ? &output_.matrix() : nullptr; }
  Bundle backward(const StepContext& ctx, const Bundle& dy, Saved& saved) override;

  // x [T, d] normed, all tokens of the head.
  Tensor normed(const StepContext& ctx, const Tensor& x, Saved& saved) const;
  // f32 [rows, V_r] of rows [begin, begin + rows) of normed's.
  Tensor logits_of(const StepContext& ctx, const Tensor& n, std::int64_t begin, std::int64_t rows) const {
    return output_.logits(ctx, n, begin, rows);
  }

 private:
  Norm norm_;
  OutputMatrix output_;
  std::vector<ParamGroup*> groups_;
  bool passes_;                 // to layers behind
  Group* sequences_ = nullptr;  // sequence_group, where the objective sums over sequences
};

// Where the head begins: what it and the depths of multi-token prediction cross with what they have normed.
inline constexpr Site head_enter{Region::head, Side::enter};

}  // namespace orthant
