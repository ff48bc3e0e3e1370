// A matrix of logits as an objective meets it.
#pragma once

#include <orthant/objective.h>

#include <string>

#include "core/layers/output_matrix.h"

namespace orthant {

// The rows of n [T, d], normed.
class MatrixRows final : public OutputRows {
 public:
  // sequences: of sequence_group, where the objective sums over sequences.
  MatrixRows(const StepContext& ctx, const OutputMatrix& matrix, Tensor n, Group* sequences = nullptr);
  std::int64_t tokens() const override { return n_.dim(0); }
  std::int64_t chunk() const override { return chunk_; }
  std::int64_t first_column() const override { return matrix_.first_column(); }
  Tensor logits(std::int64_t begin, std::int64_t rows) override { return matrix_.logits(ctx_, n_, begin, rows); }
  void cross_entropy(const Tensor& loss, const Tensor& logits, const Tensor& label, float scale) override {
    matrix_.cross_entropy(ctx_, loss, logits, label, scale);
  }
  void sum_over_columns(const Tensor& t) override { matrix_.sum_over_columns(ctx_, t); }
  void sum_over_sequences(const Tensor& t) override;
  void learn(std::int64_t begin, const Tensor& dlogits) override;

  // In training the gradient of n, when the objective has run; else undefined. Errors: Error naming the objective where
  // it has not learned from every row.
  Tensor gradient(const std::string& objective) const;

 private:
  const StepContext& ctx_;
  const OutputMatrix& matrix_;
  Tensor n_, dn_;
  Group* sequences_;
  std::int64_t chunk_, learned_ = 0;
};

// Runs an objective of the step, by its number (StepSums::objectives). Returns rows.gradient().
Tensor run_objective(const StepContext& ctx, std::size_t number, MatrixRows& rows, int depth = 0);

}  // namespace orthant
