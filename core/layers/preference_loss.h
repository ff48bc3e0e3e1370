// The loss of pairs of answers (data.source = "pairs"), where the head has the log-probabilities of a micro-batch's
// tokens, of the model and of its reference.
//
// What the loss asks of a token is one number for all tokens of an answer, and known only when both answers of its pair
// are. So the head goes over its tokens twice: first their log-probabilities are summed, and then each token's gradient
// of the cross entropy is multiplied by that number. Sums and rule are the host's: a few numbers a sequence.
#pragma once

#include <orthant/step_context.h>

#include <vector>

#include "core/layers/preference_rule.h"

namespace orthant {

// Sums over the pairs of a step, f64: StepSums::preference. `nll` is over the tokens of chosen answers, the others are
// over pairs; `reference` tells whether the reference's numbers are finite.
enum class PairSum { right, reward_chosen, reward_rejected, logp_chosen, logp_rejected, nll, reference };
inline constexpr std::int64_t pair_sums = 7;

// The ranks that hold the other parts of the same sequences in the head; null: there are none. Collective over the
// world the first time.
Group* pair_group(Plan& plan);

class PairLoss {
 public:
  explicit PairLoss(Plan& plan) : parts_(pair_group(plan)) {}
  // loss, reference f32 [T]: -log p of each token of the micro-batch, 0 where none counts. Adds to ctx.sums.loss and
  // ctx.sums.preference what this rank counts. Returns of each token, f32 [T, 1], what its gradient of -log p is to be
  // multiplied by; undefined outside of training. The host waits for the device.
  Tensor operator()(const StepContext& ctx, const Tensor& loss, const Tensor& reference) const;

 private:
  // Of each answer of the micro-batch, over all parts of its sequence.
  std::vector<AnswerSums> answers(const StepContext& ctx, const Tensor& loss, const Tensor& reference) const;

  Group* parts_;
};

}  // namespace orthant
