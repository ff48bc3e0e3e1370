// The matrix of logits: what the head and the depths of multi-token prediction share.
//
// Logits exist for one chunk of tokens at a time, and their gradient is computed in the forward pass, where the one
// scale of the loss is already known (core/layers/output_rows.h).
#pragma once

#include <optional>

#include "core/layers/layer.h"
#include "core/layers/parameter_store.h"
#include "core/layers/vocabulary_loss.h"

namespace orthant {

class OutputMatrix {
 public:
  // "lm_head.weight", or the embedding's where they are tied; "lm_head.bias" with model.head_bias. Collective over the
  // world the first time.
  OutputMatrix(const ParamStore& store, Plan& plan);

  // f32 [rows, V_r] of rows [begin, begin + rows) of n: with their bias, divided and cut off as the settings say.
  Tensor logits(const StepContext& ctx, const Tensor& n, std::int64_t begin, std::int64_t rows) const;

  // -log p of rows' labels in loss f32 [rows], and their gradients in place of the logits f32 [rows, V_r].
  void cross_entropy(const StepContext& ctx, const Tensor& loss, const Tensor& logits, const Tensor& label,
                     float scale) const;
  // Of the rows of n from begin on: writes their part of dn, and adds theirs to the matrix's gradient. dlogits f32
  // [rows, V_r]. REQUIRES: rows come in order, from 0.
  void learn(const StepContext& ctx, const Tensor& dn, const Tensor& n, std::int64_t begin,
             const Tensor& dlogits) const;

  void sum_over_columns(const StepContext& ctx, const Tensor& t) const { cross_entropy_.sum_over_columns(ctx, t); }

  const ParamRef& matrix() const { return matrix_; }
  std::int64_t first_column() const { return matrix_.param().offset[0]; }

 private:
  // Before model.logit_softcap.
  Tensor products(const StepContext& ctx, const Tensor& n, std::int64_t begin, std::int64_t rows) const;
  // Of the products, in place of the gradient of the logits or in memory of its own.
  Tensor of_products(const StepContext& ctx, const Tensor& n, std::int64_t begin, const Tensor& dlogits) const;

  ParamRef matrix_;               // [V_r, d], V_r of the vocabulary
  std::optional<ParamRef> bias_;  // [V_r]
  float divisor_, softcap_;       // model.logit_divisor, logit_softcap
  VocabularyLoss cross_entropy_;
};

}  // namespace orthant
