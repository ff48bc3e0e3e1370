// Token embedding, and learned positions where the model has them.
#pragma once

#include <optional>

#include "core/layers/layer.h"
#include "core/layers/parameter_store.h"

namespace orthant {

// The table of tokens.
class TokenTable {
 public:
  explicit TokenTable(const ParamStore& store);
  // ids i32 [T], of region embedding -> their rows [T, d], of region norm.
  Tensor rows(const StepContext& ctx, const Tensor& ids) const;
  // dy: the gradient of what rows gave for these ids.
  void add_gradient(const StepContext& ctx, const Tensor& dy, const Tensor& ids) const;

 private:
  std::int64_t first_row() const;
  ParamRef table_;  // [V_r, d], V_r rows of the vocabulary
};

class EmbeddingLayer final : public Layer {
 public:
  EmbeddingLayer(const ParamStore& store, const Settings& settings);
  // Nothing enters: the tokens are the batch's. Returns [T, d].
  Bundle forward(const StepContext& ctx, const Bundle& none, Saved& saved) override;
  Bundle backward(const StepContext& ctx, const Bundle& dy, Saved& saved) override;

 private:
  TokenTable table_;
  std::optional<ParamRef> positions_;  // [S, d], learned
};

}  // namespace orthant
