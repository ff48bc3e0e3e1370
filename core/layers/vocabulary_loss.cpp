#include "core/layers/vocabulary_loss.h"

namespace orthant {

void VocabularyLoss::operator()(const StepContext& ctx, const Tensor& loss, const Tensor& logits, const Tensor& label,
                                std::int64_t first, float scale) const {
  Stream& s = ctx.stream;
  if (slices_ == nullptr) {
    s.cross_entropy(loss, logits, label, scale);
    return;
  }
  const std::int64_t tokens = logits.dim(0);
  const Tensor own = ctx.device().empty(DType::f32, {tokens, 3});
  const Tensor stats = ctx.device().empty(DType::f32, {slices_->size(), tokens, 3});
  s.cross_entropy_stats(own, logits, label, first);
  slices_->all_gather(stats, own, s);
  s.cross_entropy_from_stats(loss, logits, label, stats, first, scale);
}

void VocabularyLoss::sum_over_columns(const StepContext& ctx, const Tensor& t) const {
  if (slices_ != nullptr) {
    slices_->all_reduce(t, ReduceOp::sum, ctx.stream);
  }
}

}  // namespace orthant
