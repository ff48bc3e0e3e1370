#include <orthant/settings.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numbers>

#include "core/train/built_in_optimizers.h"

namespace orthant {
namespace {

struct DecayKeys {
  std::int64_t decay_steps = 0;  // cosine: its last step (0: run.steps); wsd: steps of the decay (0: run.steps / 10)
  static const Keys<DecayKeys>& keys() {
    static const auto all =
        Keys<DecayKeys>()
            .add("decay_steps", &DecayKeys::decay_steps,
                 "cosine: step at which it reaches min_lr; 0: run.steps. wsd, wsd_sqrt: length of the decay, in steps "
                 "at the end of the run; 0: a tenth of run.steps.",
                 at_least(0))
            .after("warmup_steps");
    return all;
  }
};

std::int64_t decay_steps(const OptimizerSettings& o) {
  return read_keys<DecayKeys>(o.own).decay_steps;
}

class Constant final : public LearningRate {
 public:
  double rate(const OptimizerSettings& o, std::int64_t, std::int64_t) const override { return o.lr; }
};

class InverseRoot final : public LearningRate {
 public:
  double rate(const OptimizerSettings& o, std::int64_t, std::int64_t step) const override {
    const double t = static_cast<double>(step), warmup = static_cast<double>(o.warmup_steps);
    return std::max(o.min_lr, o.lr * std::sqrt((warmup + 1) / (t + 1)));
  }
};

class Cosine final : public LearningRate {
 public:
  std::vector<KindKey> keys() const override { return DecayKeys::keys().declared(); }
  void check(const OptimizerSettings& o, std::int64_t) const override {
    const std::int64_t last = decay_steps(o);
    if (last != 0 && last <= o.warmup_steps) {
      throw SettingError("optimizer.decay_steps",
                         fmt::format("[optimizer] decay_steps: {} is not after the {} steps of the warm-up\n"
                                     "write more than warmup_steps, or 0 for run.steps",
                                     last, o.warmup_steps));
    }
  }
  double rate(const OptimizerSettings& o, std::int64_t steps, std::int64_t step) const override {
    const double t = static_cast<double>(step), warmup = static_cast<double>(o.warmup_steps);
    const double end = static_cast<double>(decay_steps(o) == 0 ? steps : decay_steps(o));
    const double done = end > warmup ? std::clamp((t - warmup) / (end - warmup), 0.0, 1.0) : 1.0;
    return o.min_lr + 0.5 * (1 + std::cos(std::numbers::pi * done)) * (o.lr - o.min_lr);
  }
};

// Constant until the last `decay_steps` steps, in which it falls to min_lr: evenly, or by the root of the share of them
// that is done.
class WarmupStableDecay final : public LearningRate {
 public:
  explicit WarmupStableDecay(bool by_root) : by_root_(by_root) {}

  std::vector<KindKey> keys() const override { return DecayKeys::keys().declared(); }

  void check(const OptimizerSettings& o, std::int64_t steps) const override {
    const std::int64_t length = length_of(o, steps);
    if (length <= steps - o.warmup_steps) {
      return;
    }
    const bool chosen = decay_steps(o) != 0;
    throw SettingError(
        chosen ? "optimizer.decay_steps" : "optimizer.warmup_steps",
        fmt::format("[optimizer] {}: a warm-up of {} steps and a decay of {}{} are more than the {} of the run\nwrite "
                    "fewer{}",
                    chosen ? "decay_steps" : "warmup_steps", o.warmup_steps, length,
                    chosen ? "" : " (a tenth of the run)", steps, chosen ? "" : ", or a decay_steps that fits"));
  }
  double rate(const OptimizerSettings& o, std::int64_t steps, std::int64_t step) const override {
    const std::int64_t length = length_of(o, steps);
    const double into = static_cast<double>(step - (steps - length)) / static_cast<double>(length);
    const double done = std::clamp(into, 0.0, 1.0);
    return o.lr - (by_root_ ? std::sqrt(done) : done) * (o.lr - o.min_lr);
  }

 private:
  static std::int64_t length_of(const OptimizerSettings& o, std::int64_t steps) {
    return decay_steps(o) == 0 ? std::max<std::int64_t>(steps / 10, 1) : decay_steps(o);
  }

  bool by_root_;
};

}  // namespace

void add_learning_rates(Catalogue& catalogue) {
  catalogue.add<LearningRate>("constant", "lr, always.", std::make_shared<Constant>());
  catalogue.add<LearningRate>("cosine", "Half a cosine from lr to min_lr (Loshchilov and Hutter, \"SGDR\", 2017).",
                              std::make_shared<Cosine>());
  catalogue.add<LearningRate>("inverse_sqrt",
                              "Falls as one over the root of the step (Vaswani et al., \"Attention Is All You Need\", "
                              "2017), never below min_lr.",
                              std::make_shared<InverseRoot>());
  catalogue.add<LearningRate>("wsd",
                              "Warm-up, stable, decay: lr until the last decay_steps steps, then evenly to min_lr (Hu "
                              "et al., \"MiniCPM\", 2024).",
                              std::make_shared<WarmupStableDecay>(false));
  catalogue.add<LearningRate>(
      "wsd_sqrt",
      "As wsd, the decay by 1 - sqrt (Hägele et al., \"Scaling Laws and Compute-Optimal Training "
      "Beyond Fixed Training Durations\", 2024).",
      std::make_shared<WarmupStableDecay>(true));
}

}  // namespace orthant
