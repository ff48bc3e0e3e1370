#include <orthant/settings.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "core/config/rules.h"
#include "core/train/built_in_optimizers.h"

namespace orthant {

namespace {

AdamW adamw_of(const UpdateStep& step) {
  const auto o = read_keys<AdamKeys>(step.settings.own);
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
  return {static_cast<float>(step.lr), static_cast<float>(read_keys<MomentumKeys>(step.settings.own).momentum),
          static_cast<float>(step.weight_decay)};
}

class AdamWOptimizer final : public Optimizer {
 public:
  std::vector<KindKey> keys() const override { return AdamKeys::keys().declared(); }
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
  std::vector<KindKey> keys() const override { return MomentumKeys::keys().declared(); }
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

const Keys<AdamKeys>& AdamKeys::keys() {
  static const auto all =
      Keys<AdamKeys>()
          .add("betas", &AdamKeys::betas,
               "adamw (muon, of what it leaves to adamw): decay of the two moments, each between 0 and 1.")
          .after("min_lr")
          .refuse([](const AdamKeys& o) {
            const bool inside =
                std::all_of(o.betas.begin(), o.betas.end(), [](double beta) { return beta > 0 && beta < 1; });
            return inside ? ""
                          : fmt::format(
                                "{} and {} are not both between 0 and 1\nwrite two numbers above 0 and below "
                                "1, as in [0.9, 0.95]",
                                o.betas[0], o.betas[1]);
          })
          .add("eps", &AdamKeys::eps,
               "adamw (muon, of what it leaves to adamw): added to the root of the second moment (above 0).")
          .refuse([](const AdamKeys& o) {
            return positive_float(o.eps) ? ""
                                         : fmt::format(
                                               "{} is not above 0 in single precision\nwrite a small number "
                                               "such as 1e-8",
                                               o.eps);
          });
  return all;
}

const Keys<MomentumKeys>& MomentumKeys::keys() {
  static const auto all =
      Keys<MomentumKeys>()
          .add("momentum", &MomentumKeys::momentum, "sgd, muon: decay of the momentum (below 1).", at_least(0))
          .after("betas")
          .refuse([](const MomentumKeys& o) {
            return o.momentum < 1
                       ? ""
                       : fmt::format("{} never forgets\nwrite a number of at least 0 and below 1", o.momentum);
          });
  return all;
}

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
