// Two learning-rate schedules of Smith's, for [optimizer] schedule. A table [plugins.one_cycle] loads them.
//
//   "one_cycle"   (Smith and Topin, "Super-Convergence", 2018): evenly up from lr / 25 to lr for `rise` of the steps,
//   then
//                 by half a cosine down to min_lr.
//   "range_test"  (Smith, "Cyclical Learning Rates for Training Neural Networks", 2017): a short run whose rate grows
//   by
//                 the same factor at each step, from min_lr to lr. The loss against the rate, both in metrics.jsonl,
//                 says which rates learn and which are too large.
#include <orthant/learning_rate.h>
#include <orthant/plugin.h>
#include <orthant/settings.h>

#include <cmath>
#include <memory>
#include <numbers>

using namespace orthant;

namespace {

struct CycleKeys {
  double rise = 0.3;
  static const Keys<CycleKeys>& keys() {
    static const auto all = Keys<CycleKeys>().add(
        "rise", &CycleKeys::rise, "one_cycle: share of the steps in which the rate rises.", between(0, 1));
    return all;
  }
};

// They begin low by themselves.
void refuse_warm_up(const OptimizerSettings& o) {
  if (o.warmup_steps > 0) {
    throw SettingError("optimizer.warmup_steps",
                       "[optimizer] warmup_steps: \"" + o.schedule + "\" begins low itself\nwrite warmup_steps = 0");
  }
}

class OneCycle final : public LearningRate {
 public:
  std::vector<KindKey> keys() const override { return CycleKeys::keys().declared(); }
  void check(const OptimizerSettings& o, std::int64_t) const override { refuse_warm_up(o); }
  double rate(const OptimizerSettings& o, std::int64_t steps, std::int64_t step) const override {
    const double done = static_cast<double>(step) / static_cast<double>(steps);
    const double rise = read_keys<CycleKeys>(kind_values(o)).rise;
    if (done < rise) {
      return o.lr / 25 + (o.lr - o.lr / 25) * done / rise;
    }
    const double falls = rise < 1 ? (done - rise) / (1 - rise) : 1;
    return o.min_lr + (o.lr - o.min_lr) * 0.5 * (1 + std::cos(std::numbers::pi * falls));
  }
};

class RangeTest final : public LearningRate {
 public:
  void check(const OptimizerSettings& o, std::int64_t) const override {
    refuse_warm_up(o);
    if (o.min_lr <= 0 || o.min_lr >= o.lr) {
      throw SettingError("optimizer.min_lr",
                         "[optimizer] min_lr: \"range_test\" begins with it and ends with lr, which is larger\nwrite "
                         "min_lr = 1e-6 and lr = 1, say");
    }
  }
  double rate(const OptimizerSettings& o, std::int64_t steps, std::int64_t step) const override {
    const double last = static_cast<double>(steps > 1 ? steps - 1 : 1);
    return o.min_lr * std::pow(o.lr / o.min_lr, static_cast<double>(step) / last);
  }
};

class Schedules final : public Plugin {
 public:
  std::vector<KeySpec> keys() const override { return {}; }
  void add_to(Catalogue& catalogue, const Table&) override {
    catalogue.add<LearningRate>("one_cycle", "Smith and Topin, \"Super-Convergence\" (2018).",
                                std::make_shared<OneCycle>());
    catalogue.add<LearningRate>("range_test", "From min_lr to lr by one factor a step (Smith, 2017).",
                                std::make_shared<RangeTest>());
  }
  void claim(Mesh&, const Table&) override {}
  void plan(Plan&, Mesh&) override {}
};

}  // namespace

ORTHANT_PLUGIN("one_cycle", Schedules)
