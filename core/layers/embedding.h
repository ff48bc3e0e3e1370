// Token embedding, and learned positions where the model has them.
#pragma once

#include "core/layers/layer.h"

namespace orthant {

class EmbeddingLayer final : public Layer {
 public:
  explicit EmbeddingLayer(ParamGroup& group);
  // x is undefined: the tokens are the batch's. Returns [T, d].
  Tensor forward(const StepContext& ctx, const Tensor& x, Saved& saved) override;
  // Returns an undefined tensor.
  Tensor backward(const StepContext& ctx, const Tensor& dy, Saved& saved) override;
};

}  // namespace orthant
