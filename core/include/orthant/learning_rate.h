// LearningRate: the learning rate's way over the steps of a run. A noun of the catalogue, chosen by
// `optimizer.schedule`.
//
// Thread safety: one object for all ranks of a process; methods are const, and safe to call at the same time.
#pragma once

#include <cstdint>
#include <vector>

#include <orthant/abi/learning_rate.h>
#include <orthant/keys.h>

namespace orthant {

struct OptimizerSettings;

class LearningRate {
 public:
  static constexpr const char* noun = "learning-rate schedule";
  virtual ~LearningRate() = default;

  // The keys that it reads beside those that every kind has (keys.h). By default none.
  virtual std::vector<KindKey> keys() const { return {}; }
  // Refuses settings that make no sense for it. `steps`: run.steps. Errors: SettingError; lines after the first say
  // what to do.
  virtual void check(const OptimizerSettings&, std::int64_t /*steps*/) const {}

  // The rate of step `step`, counted from 0. The core makes the warm-up: it asks only for steps from
  // settings.warmup_steps on. A pure function.
  virtual double rate(const OptimizerSettings& settings, std::int64_t steps, std::int64_t step) const = 0;
};

}  // namespace orthant
