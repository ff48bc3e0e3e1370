// examples/plugins/one_cycle.cpp: the schedules against their definitions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/catalogue.h>
#include <orthant/learning_rate.h>

#include <cmath>
#include <numbers>

#include "tests/support/error_of.h"
#include "tests/support/parity.h"
#include "tests/support/paths.h"

namespace orthant::run_test::one_cycle_test {
namespace {

using test::joined;
using test::Overrides;
using testing::HasSubstr;

const std::string plugin = fmt::format("[plugins.one_cycle]\npath = \"{}\"\n", paths::out_of_tree("one_cycle"));
const Overrides common = {"optimizer.lr=0.5", "optimizer.min_lr=0.01", "optimizer.warmup_steps=0", "run.steps=10"};

std::vector<double> rates(const Overrides& overrides) {
  const Settings s = test::experiment(joined(common, overrides), plugin).settings;
  const LearningRate& schedule = s.catalogue->get<LearningRate>(s.optimizer.schedule);
  std::vector<double> found;
  for (int step = 0; step < 10; ++step) {
    found.push_back(schedule.rate(s.optimizer, 10, step));
  }
  return found;
}

TEST(OneCycle, RisesEvenlyAndFallsByHalfACosine) {
  const std::vector<double> found = rates({R"(optimizer.schedule="one_cycle")", "optimizer.rise=0.4"});
  for (int step = 0; step < 4; ++step) {
    EXPECT_NEAR(found[static_cast<std::size_t>(step)], 0.02 + 0.48 * step / 4, 1e-12);
  }
  for (int step = 4; step < 10; ++step) {
    EXPECT_NEAR(found[static_cast<std::size_t>(step)],
                0.01 + 0.49 / 2 * (1 + std::cos(std::numbers::pi * (step - 4) / 6)), 1e-12);
  }
}

TEST(OneCycle, ARangeTestGrowsByOneFactor) {
  const std::vector<double> found = rates({R"(optimizer.schedule="range_test")"});
  EXPECT_NEAR(found.front(), 0.01, 1e-12);
  EXPECT_NEAR(found.back(), 0.5, 1e-12);
  for (std::size_t i = 1; i < found.size(); ++i) {
    EXPECT_NEAR(found[i] / found[i - 1], std::pow(50.0, 1.0 / 9), 1e-12);
  }
}

TEST(OneCycle, RefusesWhatHasNoMeaning) {
  EXPECT_THAT(test::refusal(joined(common, {R"(optimizer.schedule="one_cycle")", "optimizer.warmup_steps=3"}), plugin),
              HasSubstr("begins low itself"));
  EXPECT_THAT(test::refusal(joined(common, {R"(optimizer.schedule="range_test")", "optimizer.min_lr=0.0"}), plugin),
              HasSubstr("write min_lr = 1e-6 and lr = 1"));
  EXPECT_THAT(test::refusal(joined(common, {R"(optimizer.schedule="one_cycle")", "optimizer.rise=1.5"}), plugin),
              HasSubstr("rise"));
}

}  // namespace
}  // namespace orthant::run_test::one_cycle_test
