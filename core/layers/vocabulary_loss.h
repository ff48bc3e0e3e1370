// The cross entropy of logits whose columns may be divided among ranks.
#pragma once

#include <orthant/step_context.h>

#include "core/plan/groups.h"

namespace orthant {

class VocabularyLoss {
 public:
  explicit VocabularyLoss(Plan& plan) : slices_(vocabulary_group(plan)) {}
  // loss f32 [T] = -log p(label); logits f32 [T, V_r] become their gradient, scale * (softmax - onehot). A label i32
  // [T] below 0 gives 0 in both. first: the vocabulary's first column of this rank.
  void operator()(const StepContext& ctx, const Tensor& loss, const Tensor& logits, const Tensor& label,
                  std::int64_t first, float scale) const;
  // Of what each rank has of its own columns, over all of them. In place.
  void sum_over_columns(const StepContext& ctx, const Tensor& t) const;

 private:
  Group* slices_;
};

}  // namespace orthant
