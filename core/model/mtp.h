// One depth of multi-token prediction (DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 2.2): a layer behind
// the head, whose loss asks each position for the token k + 1 places further on. With t the tokens, and i a position,
//   x_i   = W [norm(E[t_(i+k)]) ; norm(h^(k-1)_i)]
//   h^k_i = norm(block(x)_i)
//   p_i   = softmax(O h^k_i),  asked for t_(i+k+1)
// E and O are the model's own embedding and matrix of logits. h^0 is what the head has normed, as published weights of
// DeepSeek-V3 and GLM-4.5 are used. Positions whose document ends before i + k + 1 have no loss. Tokens and loss are
// those of an objective of its own (core/objectives/multi_token.h).
#pragma once

#include "core/layers/embedding.h"
#include "core/layers/norm.h"
#include "core/layers/output_matrix.h"
#include "core/model/block.h"

namespace orthant {

class MtpLayer final : public Layer {
 public:
  MtpLayer(const ParamStore& store, Plan& plan, const Link& link);
  // h^(k-1) [T, d] -> h^k, or nothing behind the last depth. Adds to the sums of the second objective,
  // where there is one, and in training to the gradient of the logits' matrix.
  Bundle forward(const StepContext& ctx, const Bundle& from, Saved& saved) override;
  Bundle backward(const StepContext& ctx, const Bundle& dy, Saved& saved) override;
  std::vector<ParamGroup*> grown_in_forward() const override { return grown_; }
  const ParamRef* overwritten() const override { return output_.matrix().wants_grad() ? &output_.matrix() : nullptr; }

 private:
  int depth_;    // from 0: k - 1
  bool passes_;  // to another depth
  TokenTable tokens_;
  Norm enorm_, hnorm_;
  ParamRef proj_;  // [d, 2 d]
  std::unique_ptr<Layer> block_;
  Norm norm_;
  OutputMatrix output_;
  std::vector<ParamGroup*> grown_;  // of the logits' matrix and its adapters
};

}  // namespace orthant
