#include <orthant/settings.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "core/train/built_in_optimizers.h"

namespace orthant {

namespace {

AdamW adamw_of(const UpdateStep& step) {
  const OptimizerSettings& o = step.settings;
  const double count = static_cast<double>(step.step + 1);
  return {.lr = static_cast<float>(step.lr),
          .beta1 = static_cast<float>(o.betas[0]),
          .beta2 = static_cast<float>(o.betas[1]),
          .eps = static_cast<float>(o.eps),
          .weight_decay = static_cast<float>(step.weight_decay),
          .correction1 = static_cast<float>(1 - std::pow(o.betas[0], count)),
          .correction2 = static_cast<float>(1 - std::pow(o.betas[1], count))};
}

Sgd sgd_of(const UpdateStep& step) {
  return {static_cast<float>(step.lr), static_cast<float>(step.settings.momentum),
          static_cast<float>(step.weight_decay)};
}

class AdamWOptimizer final : public Optimizer {
 public:
  Treatment treatment(const ParamSpec&, const OptimizerSettings&) const override {
    return {
        .states = {{.name = "moment1", .code = StateCode::with_sign}, {.name = "moment2", .code = StateCode::positive}},
        .replays = true};
  }
  void update(const UpdateSlice& slice, const UpdateStep& step, Stream& s) const override {
    adamw_update(slice, step, s);
  }
  void replay(const UpdateSlice& slice, std::span<const UpdateStep> steps, Stream& s) const override {
    std::vector<AdamW> missed(steps.size());
    std::transform(steps.begin(), steps.end(), missed.begin(), adamw_of);
    s.adamw_replay(slice.master, slice.weight, slice.state[0], slice.state[1], missed);
  }
};

// The momentum's name is that of checkpoints written before states had names.
class SgdOptimizer final : public Optimizer {
 public:
  Treatment treatment(const ParamSpec&, const OptimizerSettings&) const override {
    return {.states = {{.name = "moment1", .code = StateCode::with_sign}}, .replays = true};
  }
  void update(const UpdateSlice& slice, const UpdateStep& step, Stream& s) const override {
    s.sgd(slice.master, slice.weight, slice.state[0], slice.grad, step.factor, sgd_of(step));
  }
  void replay(const UpdateSlice& slice, std::span<const UpdateStep> steps, Stream& s) const override {
    std::vector<Sgd> missed(steps.size());
    std::transform(steps.begin(), steps.end(), missed.begin(), sgd_of);
    s.sgd_replay(slice.master, slice.weight, slice.state[0], missed);
  }
};

}  // namespace

void adamw_update(const UpdateSlice& slice, const UpdateStep& step, Stream& s) {
  s.adamw(slice.master, slice.weight, slice.state[0], slice.state[1], slice.grad, step.factor, adamw_of(step));
}

void add_optimizers(Catalogue& catalogue) {
  catalogue.add<Optimizer>("adamw", "Loshchilov and Hutter, \"Decoupled Weight Decay Regularization\" (2019).",
                           std::make_shared<AdamWOptimizer>());
  catalogue.add<Optimizer>("sgd", "Gradient descent with momentum.", std::make_shared<SgdOptimizer>());
  catalogue.add<Optimizer>(
      "muon",
      "Orthogonalised momentum for hidden matrices, AdamW for the rest (Jordan et al., 2024; Liu et "
      "al., \"Muon is Scalable for LLM Training\", 2025).",
      make_muon());
}

}  // namespace orthant
