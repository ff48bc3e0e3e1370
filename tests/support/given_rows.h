// Rows of logits that are given, for an objective to run over.
#pragma once

#include <gtest/gtest.h>
#include <orthant/objective.h>

#include "core/layers/vocabulary_loss.h"

namespace orthant::test {

// Gradients are expected where the logits lie.
class GivenRows final : public OutputRows {
 public:
  GivenRows(const StepContext& ctx, Plan& plan, const Tensor& logits, std::int64_t first_column, std::int64_t chunk)
      : ctx_(ctx), loss_(plan), logits_(logits), first_column_(first_column), chunk_(chunk) {}
  std::int64_t tokens() const override { return logits_.dim(0); }
  std::int64_t chunk() const override { return chunk_; }
  std::int64_t first_column() const override { return first_column_; }
  Tensor logits(std::int64_t begin, std::int64_t rows) override { return logits_.rows(begin, rows); }
  void cross_entropy(const Tensor& loss, const Tensor& logits, const Tensor& label, float scale) override {
    loss_(ctx_, loss, logits, label, first_column_, scale);
  }
  void sum_over_columns(const Tensor& t) override { loss_.sum_over_columns(ctx_, t); }
  void sum_over_sequences(const Tensor&) override { FAIL(); }
  void learn(std::int64_t begin, const Tensor& dlogits) override {
    EXPECT_EQ(begin, learned_);
    EXPECT_EQ(dlogits.data(), logits_.rows(begin, dlogits.dim(0)).data());
    learned_ += dlogits.dim(0);
  }
  std::int64_t learned() const { return learned_; }

 private:
  const StepContext& ctx_;
  VocabularyLoss loss_;
  Tensor logits_;
  std::int64_t first_column_, chunk_, learned_ = 0;
};

class GivenTeacher final : public TeacherLogits {
 public:
  explicit GivenTeacher(const Tensor& logits) : logits_(logits) {}
  void begin(int) override { ++begun; }
  Tensor logits(std::int64_t begin, std::int64_t rows) override { return logits_.rows(begin, rows); }
  void end() override { --begun; }
  int begun = 0;

 private:
  Tensor logits_;
};

}  // namespace orthant::test
