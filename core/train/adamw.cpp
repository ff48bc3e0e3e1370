#include <cmath>
#include <memory>

#include "core/train/built_in_optimizers.h"

namespace orthant {

void adamw_update(const UpdateSlice& slice, const UpdateStep& step, Stream& s) {
  const OptimizerSettings& o = step.settings;
  const double count = static_cast<double>(step.step + 1);
  s.adamw(slice.master, slice.weight, slice.state[0], slice.state[1], slice.grad, step.factor,
          {.lr = static_cast<float>(step.lr),
           .beta1 = static_cast<float>(o.betas[0]),
           .beta2 = static_cast<float>(o.betas[1]),
           .eps = static_cast<float>(o.eps),
           .weight_decay = static_cast<float>(step.weight_decay),
           .correction1 = static_cast<float>(1 - std::pow(o.betas[0], count)),
           .correction2 = static_cast<float>(1 - std::pow(o.betas[1], count))});
}

namespace {

class AdamWOptimizer final : public Optimizer {
 public:
  Treatment treatment(const ParamSpec&, const OptimizerSettings&) const override {
    return {.states = {{"moment1"}, {"moment2"}}};
  }
  void update(const UpdateSlice& slice, const UpdateStep& step, Stream& s) const override {
    adamw_update(slice, step, s);
  }
};

// The momentum's name is that of checkpoints written before states had names.
class SgdOptimizer final : public Optimizer {
 public:
  Treatment treatment(const ParamSpec&, const OptimizerSettings&) const override { return {.states = {{"moment1"}}}; }
  void update(const UpdateSlice& slice, const UpdateStep& step, Stream& s) const override {
    s.sgd(slice.master, slice.weight, slice.state[0], slice.grad, step.factor,
          {static_cast<float>(step.lr), static_cast<float>(step.settings.momentum),
           static_cast<float>(step.weight_decay)});
  }
};

}  // namespace

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
