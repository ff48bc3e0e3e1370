// verify itself: what is rounding and what is not, whom it names, and what it costs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <thread>

#include "apps/verify/verify.h"
#include "tests/support/experiment.h"
#include "tests/support/paths.h"

namespace orthant::verify_test {
namespace {

using test::axes;
using test::experiment;
using test::Overrides;
using testing::HasSubstr;

const std::string router = "model.layers.0.block_sparse_moe.gate.weight";

double root_mean_square(const std::vector<float>& values) {
  double squares = 0;
  for (const float v : values) {
    squares += static_cast<double>(v) * static_cast<double>(v);
  }
  return std::sqrt(squares / static_cast<double>(values.size()));
}

double root_mean_square(const std::map<std::string, std::vector<float>>& tensors) {
  std::vector<float> all;
  for (const auto& [name, values] : tensors) {
    all.insert(all.end(), values.begin(), values.end());
  }
  return root_mean_square(all);
}

// The weight of a single choice, normalised, is 1 whatever the router says: without balance and z loss its gradient is
// zero, or rounding. Adam with its usual eps makes as much of rounding as of any gradient.
TEST(Verify, RoundingOfAGradientThatIsZeroIsNoDifference) {
  for (const char* std : {"model.init_std=0.2", "model.init_std=0.02"}) {
    const Overrides overrides = {"moe.top_k=1", "moe.aux_loss=0", "moe.z_loss=0", "optimizer.eps=1e-8", std};
    Snapshot one = take_snapshot(experiment(overrides), 1), other = one;
    const double whole = root_mean_square(one.gradients[0]);
    ASSERT_LT(root_mean_square(one.gradients[0].at(router)), 1e-6 * whole);
    const VerifyReport report = verify(experiment(overrides, axes(4, 2)), 3);
    EXPECT_EQ(report.first_difference, "");
    // Rounding here and other rounding there; and as much of a difference in what is no rounding shows.
    for (const double size : {1e-8, 1e-2}) {
      float sign = 1;
      for (std::size_t i = 0; i < one.gradients[0].at(router).size(); ++i, sign = -sign) {
        one.gradients[0].at(router)[i] = sign * static_cast<float>(size * whole);
        other.gradients[0].at(router)[i] = (i % 3 == 0 ? 1.0f : -0.5f) * static_cast<float>(size * whole);
      }
      EXPECT_EQ(compare(one, other, Settings()).ok(), size < 1e-6) << size;
    }
  }
}

// A gradient some hundred times smaller than the others' is held to its own norm, and a wrong one of a hundred
// thousandth still shows.
TEST(Verify, ErrorsOfSmallGradientsAreDifferences) {
  struct Planted {
    const char* aux_loss;
    double smallest, largest;  // expected share of the whole gradient's root mean square
    float factor;
  };
  for (const Planted& planted :
       {Planted{"moe.aux_loss=0.01", 0.01, 0.1, 1.001f}, Planted{"moe.aux_loss=0.00001", 1e-5, 1e-4, 0.5f}}) {
    const Overrides overrides = {"moe.top_k=1", "moe.z_loss=0", planted.aux_loss};
    const Snapshot one = take_snapshot(experiment(overrides), 1);
    const double share = root_mean_square(one.gradients[0].at(router)) / root_mean_square(one.gradients[0]);
    ASSERT_GT(share, planted.smallest);
    ASSERT_LT(share, planted.largest);
    Snapshot wrong = one;
    for (float& g : wrong.gradients[0].at(router)) {
      g *= planted.factor;
    }
    EXPECT_TRUE(compare(one, one, Settings()).ok());
    EXPECT_THAT(compare(wrong, one, Settings()).first_difference, HasSubstr("gradient of step 1 " + router));
  }
}

TEST(Verify, ATensorOfAnotherSizeOrNoneIsADifference) {
  const Snapshot one = take_snapshot(experiment(), 1);
  Snapshot wrong = one;
  wrong.gradients[0].at(router).pop_back();
  EXPECT_THAT(compare(wrong, one, Settings()).first_difference, HasSubstr(router));
  wrong.gradients[0].erase(router);
  EXPECT_THAT(compare(wrong, one, Settings()).first_difference, HasSubstr(router));
  wrong = one;
  wrong.state.erase("moment2/" + router);
  EXPECT_THAT(compare(wrong, one, Settings()).first_difference, HasSubstr("moment2 of " + router));
}

// A difference in bf16 may be no fault where a layout adds up rounded parts, and in any later step: the report says how
// to find out.
TEST(Verify, AdvisesWhatToTryWhereNearTiesMayFallTheOtherWay) {
  VerifyReport different;
  different.first_difference = "routing counters of step 1 layer 0";
  const std::string parts = "[plugins.tensor]\nsize = 2\n", bf16 = R"(run.dtype="bf16")";
  EXPECT_THAT(advice_on(different, experiment({bf16}, axes(2) + parts)),
              testing::AllOf(HasSubstr("axis tensor"), HasSubstr("nearly equal"), HasSubstr("run.dtype=\"fp32\"")));
  // Any layout, once weights have been updated: Ulysses, the ring, the data axis.
  VerifyReport later = different;
  later.first_difference = "routing counters of step 2 layer 0";
  later.first_step = 2;
  for (const std::string& plugins : {std::string("[plugins.sequence]\nsize = 4\n"), axes(2)}) {
    EXPECT_THAT(advice_on(later, experiment({bf16}, plugins)),
                testing::AllOf(HasSubstr("second step"), HasSubstr("nearly equal"), HasSubstr("run.dtype=\"fp32\"")));
    EXPECT_EQ(advice_on(different, experiment({bf16}, plugins)), "") << "in the first step weights are equal";
    EXPECT_EQ(advice_on(different, experiment({}, plugins)), "") << "in the first step weights are equal";
    EXPECT_THAT(advice_on(later, experiment({"run.seed=4"}, plugins)),
                testing::AllOf(HasSubstr("before step 2 agree"), HasSubstr("--set run.seed=5")));
  }
  later.first_difference = "later gradient of step 2 " + router;
  EXPECT_EQ(advice_on(later, experiment({bf16}, axes(2))), "") << "all tokens went where they should";
  EXPECT_EQ(advice_on(VerifyReport(), experiment({bf16}, parts)), "") << "nothing differs";
  EXPECT_EQ(advice_on(different, experiment({}, parts)), "") << "fp32";
  EXPECT_EQ(advice_on(different, experiment({bf16}, axes(2, 2))), "") << "whole sums";
  EXPECT_EQ(advice_on(different, experiment({bf16, "moe.experts=0"}, parts)), "") << "nothing is routed";
}

// The balance loss over a batch knows a micro-batch of all ranks, which has other tokens in another layout.
TEST(Verify, AdvisesThatABalanceOverMicroBatchesDependsOnTheLayout) {
  const std::string data = axes(2);
  const Config config = experiment({R"(moe.balance_over="batch")", "moe.aux_loss=0.01", "batch.micro_batch=1"}, data);
  const VerifyReport found = verify(config, 1);
  EXPECT_THAT(found.first_difference, testing::StartsWith("aux_loss of step 1"));
  EXPECT_THAT(advice_on(found, config),
              testing::AllOf(HasSubstr("one rank is no reference"), HasSubstr("moe.balance_over=\"group\"")));
  const Config whole = experiment({R"(moe.balance_over="batch")", "moe.aux_loss=0.01"}, data);
  EXPECT_TRUE(verify(whole, 1).ok()) << "one micro-batch has the same tokens in both";
}

// Training that stops is a difference too, and has someone to blame.
TEST(Verify, TrainingThatStops) {
  const std::string broken = "[plugins.broken]\npath = \"" + paths::build("tests/parity/liborthant_plugin_broken.so") +
                             "\"\nfault = \"not_finite\"\n";
  const VerifyReport report = verify(experiment({}, broken + axes(2)), 2);
  EXPECT_THAT(report.first_difference, HasSubstr("training stops where one rank goes on"));
  EXPECT_THAT(report.first_difference, HasSubstr("step 1 is not applied"));
  EXPECT_EQ(report.axes, "broken");
}

// A wrong layout of sixteen ranks: its ranks are threads, and those of the search for the axis to blame come one layout
// after another.
TEST(Verify, SixteenRanksTakeAtMost64Threads) {
  const std::string broken = "[plugins.broken]\npath = \"" + paths::build("tests/parity") +
                             "/liborthant_plugin_broken.so\"\nsize = 2\nfault = \"mean\"\n";
  const Config config = experiment({"batch.sequences=16"}, broken + axes(8, 4));
  std::atomic<bool> done = false;
  std::size_t most = 0;
  std::jthread watch([&] {
    while (!done) {
      std::size_t now = 0;
      for (auto task = std::filesystem::directory_iterator("/proc/self/task");
           task != std::filesystem::directory_iterator(); ++task) {
        ++now;
      }
      most = std::max(most, now);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  const VerifyReport report = verify(config, 2);
  done = true;
  watch.join();
  EXPECT_EQ(report.axes, "broken");
  EXPECT_GT(most, 16u);
  EXPECT_LE(most, 64u);
}

}  // namespace
}  // namespace orthant::verify_test
