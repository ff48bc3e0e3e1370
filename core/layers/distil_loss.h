// The loss of a student: its labels' cross entropy, and how far it is from a teacher (settings.h, DistilSettings).
//
// Made of cross entropies alone, so that a divided vocabulary and any device have it as they have those. With p and q
// the softmax of the student's and the teacher's logits l and m over the temperature t, and y a one-hot label,
//   the gradient of t^2 KL(q || p) by l:  t (p - q) = t (p - y) - t (q - y)
//   KL(q || p) = sum_v (q - y)_v (m - l)_v / t  -  log p(label)  +  log q(label)
// and both p - y and q - y are gradients of a cross entropy. Source: Hinton et al., "Distilling the knowledge in a
// neural network", 2015.
#pragma once

#include "core/layers/vocabulary_loss.h"

namespace orthant {

// Whose logits a student learns from. A micro-batch is between its begin and its end while the head works on it.
class TeacherLogits {
 public:
  virtual ~TeacherLogits() = default;
  virtual void begin(int micro_batch) = 0;
  // f32 [rows, V_r] of the tokens [begin, begin + rows) that this rank holds in the head, its columns of the
  // vocabulary. The caller may write there.
  virtual Tensor logits(std::int64_t begin, std::int64_t rows) = 0;
  virtual void end() = 0;
};

class DistilLoss {
 public:
  explicit DistilLoss(const VocabularyLoss& cross_entropy) : cross_entropy_(cross_entropy) {}
  // Before the chunks of a micro-batch, and behind them. What the teacher asks for is added to ctx.sums.distil.
  void begin(const StepContext& ctx);
  void end(const StepContext& ctx);
  // loss f32 [T] = -log p(label) of the student. Its logits f32 [T, V_r] become the gradient of ctx.loss_scale times
  // the whole loss; those of the teacher are overwritten. label, first: as in VocabularyLoss.
  void operator()(const StepContext& ctx, const Tensor& loss, const Tensor& logits, const Tensor& teacher,
                  const Tensor& label, std::int64_t first);

 private:
  const VocabularyLoss& cross_entropy_;
  Tensor over_columns_;  // f64 [1], between begin and end: of this rank's columns
};

}  // namespace orthant
