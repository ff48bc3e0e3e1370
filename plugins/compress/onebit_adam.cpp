#include "onebit_adam.h"

#include <cmath>

#include <orthant/settings.h>

namespace orthant::compress {
namespace {

double wide(float x) {
  return static_cast<double>(x);
}

class OnebitAdam final : public Optimizer {
 public:
  std::vector<KindKey> keys() const override { return OnebitKeys::keys().declared(); }
  void check(const OptimizerSettings& settings) const override {
    if (settings.state_dtype != StateType::fp32) {
      throw SettingError("optimizer.state_dtype",
                         "[optimizer] state_dtype: \"onebit_adam\" sums its momentum, which has no codes\nwrite "
                         "state_dtype = \"fp32\"");
    }
  }
  Treatment treatment(const ParamSpec&, const OptimizerSettings&) const override {
    return {.states = {{.name = "moment1"}, {.name = "moment2"}}};
  }

  void update(const UpdateSlice& slice, const UpdateStep& step, Stream& s) const override {
    const auto keys = read_keys<OnebitKeys>(kind_values(step.settings));
    const auto correction = [&](double beta, std::int64_t steps) {
      return static_cast<float>(1 - std::pow(beta, static_cast<double>(steps)));
    };
    if (step.step < keys.freeze_after) {
      s.adamw(slice.master, slice.weight, slice.state[0], slice.state[1], slice.grad, step.factor,
              {.lr = static_cast<float>(step.lr),
               .beta1 = static_cast<float>(keys.betas[0]),
               .beta2 = static_cast<float>(keys.betas[1]),
               .eps = static_cast<float>(keys.eps),
               .weight_decay = static_cast<float>(step.weight_decay),
               .correction1 = correction(keys.betas[0], step.step + 1),
               .correction2 = correction(keys.betas[1], step.step + 1)});
      return;
    }
    const Tensor change = slice.master.on_host() ? s.device().host_empty(DType::f32, slice.grad.shape())
                                                 : s.device().empty(DType::f32, slice.grad.shape());
    s.apply({.name = "compress/onebit_adam",
             .inputs = {slice.grad, step.factor, slice.state[0], slice.state[1]},
             .outputs = {slice.state[0], change},
             .host = [correction2 = wide(correction(keys.betas[1], keys.freeze_after)),
                      eps = keys.eps](const HostArguments& a) {
               const auto momentum = a.input<float>(0), factor = a.input<float>(1), v = a.input<float>(3);
               const auto m = a.output<float>(0), out = a.output<float>(1);
               for (std::size_t i = 0; i < out.size(); ++i) {
                 const double clipped = wide(momentum[i]) * wide(factor[0]);
                 if (!std::isnan(factor[0])) {
                   m[i] = momentum[i];
                 }
                 out[i] = static_cast<float>(clipped / (std::sqrt(wide(v[i]) / correction2) + eps));
               }
             }});
    s.descend(slice.master, slice.weight, change, step.finite, static_cast<float>(step.lr),
              static_cast<float>(step.weight_decay));
  }
};

}  // namespace

const Keys<OnebitKeys>& OnebitKeys::keys() {
  static const auto all =
      Keys<OnebitKeys>()
          .add("betas", &OnebitKeys::betas, "Decay of the two moments.")
          .add("eps", &OnebitKeys::eps, "Added to the root of the second moment.")
          .add("freeze_after", &OnebitKeys::freeze_after,
               "onebit_adam: steps of plain AdamW, with whole sums; from then on the second moment stays, and the "
               "momentum is summed in a code of few bits.",
               between(1, 1 << 30));
  return all;
}

std::shared_ptr<const Optimizer> make_onebit_adam() {
  return std::make_shared<OnebitAdam>();
}

}  // namespace orthant::compress
