// Where a loss or a gradient that is not finite began: the first layer whose output, or whose gradient, is not.
#pragma once

#include <orthant/hook.h>

#include "core/train/gradient_norm.h"
#include "core/train/model_work.h"

namespace orthant {

// The forward pass once more, layer by layer. REQUIRES: the contexts do not train and sum into `loss` (f64 [1]).
class FiniteSearch final : public ModelWork {
 public:
  FiniteSearch(Plan& plan, Model& model, Load load, Context context, const HookContext& at, Tensor loss);
  Tensor forward(int chunk, int micro_batch, Tensor x) override;
  static constexpr int none = 1 << 20;
  int first_layer() const { return first_layer_; }  // of this rank's, over all micro-batches; none: all are finite

 private:
  Tensor loss_;
  Tensor squares_;  // f64 [1]
  int first_layer_ = none;
};

// Refuses a step of a model of `layers` layers. first_layer: what this rank's search found. Collective over `ranks`,
// those that train one model. Errors: always Error, naming the layer and rank of the forward pass, else those of the
// gradients. in_backward: groups with finite gradients were updated before the step was known to be not finite.
[[noreturn]] void refuse_step(const StepReport& report, int first_layer, const GradientNorm& norm, int layers,
                              bool in_backward, Group& ranks, Stream& stream);

}  // namespace orthant
