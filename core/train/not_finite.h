// Where a loss or a gradient that is not finite began: the first layer whose output, or whose gradient, is not.
#pragma once

#include <orthant/hook.h>

#include <vector>

#include "core/train/gradient_norm.h"
#include "core/train/training_work.h"
#include "router/routing_tap.h"

namespace orthant {

// The forward pass of a step once more, layer by layer, without training. REQUIRES: parts.sums have a `loss`.
class FiniteSearch final : public TrainingWork {
 public:
  FiniteSearch(Plan& plan, Model& model, const Parts& parts, const HookContext& at);
  Bundle forward(int chunk, int micro_batch, Bundle x) override;
  static constexpr int none = 1 << 20;
  int first_layer() const { return first_layer_; }  // of this rank's, over all micro-batches; none: all are finite

 protected:
  StepContext context(const DeviceBatch& batch, int chunk, int micro_batch) override;

 private:
  Tensor loss_;
  Tensor squares_;  // f64 [1]
  int first_layer_ = none;
};

// Looks on while routers decide: the first layer whose balance or z loss is not finite.
class FiniteRouting final : public RoutingTap {
 public:
  explicit FiniteRouting(const Plan& plan);
  void decided(const StepContext& ctx, int routed, const GateInput& from, const GateChoice& made) override;
  int first_layer() const { return first_layer_; }  // of this rank's; FiniteSearch::none: all are finite

 private:
  const Settings& settings_;
  std::vector<const Link*> routed_;
  Tensor losses_;  // f64 [2]
  int first_layer_ = FiniteSearch::none;
};

// What this rank's searches found.
struct FoundNotFinite {
  int layer, router;
};

// Refuses a step. Collective over `ranks`, those that train one model. Errors: always Error, naming the layer and rank
// of the forward pass, else that of the router, else those of the gradients.
[[noreturn]] void refuse_step(const StepReport& report, const FoundNotFinite& first, const GradientNorm& norm,
                              const Plan& plan, Group& ranks, Stream& stream);

}  // namespace orthant
