// The suite must be able to fail: axes that are wrong on purpose (broken/*.cpp) are caught, with the quantity and the
// axis that show it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/run/verify.h"
#include "tests/support/experiment.h"

namespace orthant {
namespace {

using test::axes;
using test::experiment;
using testing::HasSubstr;

std::string broken_data(int size, const std::string& fault, const std::string& group = "layer 1") {
  return fmt::format(
      "[plugins.broken]\npath = \"{}/liborthant_plugin_broken.so\"\nsize = {}\nfault = \"{}\"\ngroup = "
      "\"{}\"\n",
      ORTHANT_BROKEN_PLUGINS, size, fault, group);
}

std::string broken_expert(int size, const std::string& fault) {
  return fmt::format(
      "[plugins.broken_expert]\npath = \"{}/liborthant_plugin_broken_expert.so\"\nsize = {}\nfault = \"{}\"\n",
      ORTHANT_BROKEN_PLUGINS, size, fault);
}

const Comparison& row_of(const VerifyReport& report, const std::string& quantity) {
  for (const Comparison& row : report.rows) {
    if (row.quantity == quantity) {
      return row;
    }
  }
  throw std::runtime_error("nothing compares " + quantity);
}

// The plugins themselves are sound: only their faults are wrong.
TEST(Faults, NoneIsFound) {
  EXPECT_EQ(verify(experiment({}, broken_data(4, "none")), 2).first_difference, "");
  EXPECT_EQ(verify(experiment({}, broken_data(2, "none") + axes(2, 4)), 2).first_difference, "");
  EXPECT_EQ(verify(experiment({}, axes(4) + broken_expert(4, "none")), 2).first_difference, "");
}

// A factor hides from Adam's weights, not from the gradients (and not from the norm).
TEST(Faults, Mean) {
  const VerifyReport report = verify(experiment({"optimizer.clip_grad_norm=0"}, broken_data(2, "mean")), 1);
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.first_difference, HasSubstr("gradient of step 1"));
  EXPECT_NEAR(row_of(report, "gradient").difference, 0.5, 1e-4);
  EXPECT_NEAR(row_of(report, "grad_norm").difference, 0.5, 1e-4);
  EXPECT_EQ(report.axes, "broken");
}

TEST(Faults, ForgottenSumOfOneGroup) {
  const VerifyReport report = verify(experiment({}, broken_data(2, "forgotten", "layer 1 experts")), 1);
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.first_difference, HasSubstr("gradient of step 1 model.layers.1.block_sparse_moe.experts.0"));
  EXPECT_GT(row_of(report, "replicas").difference, 0) << "two replicas were trained on different gradients";
  EXPECT_EQ(report.axes, "broken");
}

TEST(Faults, SumTakenTwice) {
  const VerifyReport report = verify(experiment({}, broken_data(2, "twice", "head")), 1);
  ASSERT_FALSE(report.ok());
  EXPECT_NEAR(row_of(report, "gradient").difference, 1, 1e-4);
  EXPECT_THAT(report.first_difference, testing::AnyOf(HasSubstr("lm_head.weight"), HasSubstr("model.norm.weight")));
}

TEST(Faults, OneReplicaStandsForAll) {
  const VerifyReport report = verify(experiment({}, broken_data(4, "overwritten")), 1);
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.first_difference, HasSubstr("gradient"));
  EXPECT_EQ(row_of(report, "replicas").difference, 0) << "all have the same, wrong, weights";
}

// Too small for any tolerance of values: only the comparison of bits shows it.
TEST(Faults, ReplicasThatPart) {
  const VerifyReport report = verify(experiment({"optimizer.name=\"sgd\""}, broken_data(2, "drift")), 1);
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.first_difference, HasSubstr("replicas of"));
  EXPECT_THAT(report.first_difference, HasSubstr("on rank 1"));
}

TEST(Faults, AreNotBlamedOnSoundAxes) {
  const VerifyReport report = verify(experiment({}, broken_data(2, "mean") + axes(2)), 1);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.axes, "broken");
}

TEST(Faults, RowsOfTwoRanksSwapped) {
  const VerifyReport report = verify(experiment({}, axes(4) + broken_expert(4, "swapped")), 1);
  ASSERT_FALSE(report.ok());
  EXPECT_FALSE(row_of(report, "loss").ok());
  EXPECT_THAT(report.first_difference, HasSubstr("step 1"));
  EXPECT_EQ(report.axes, "data x broken_expert");
}

TEST(Faults, RowsShuffledOnTheWay) {
  const VerifyReport report = verify(experiment({}, axes(4) + broken_expert(4, "shuffled")), 1);
  ASSERT_FALSE(report.ok());
  EXPECT_FALSE(row_of(report, "loss").ok());
}

// The forward pass is right, so every loss is: only gradients tell.
TEST(Faults, NoGradientThroughTheExchange) {
  const VerifyReport report = verify(experiment({}, axes(4) + broken_expert(4, "no_gradient")), 1);
  ASSERT_FALSE(report.ok());
  EXPECT_TRUE(row_of(report, "loss").ok());
  EXPECT_TRUE(row_of(report, "routing counters").ok());
  EXPECT_THAT(report.first_difference, HasSubstr("gradient of step 1"));
  EXPECT_GT(row_of(report, "gradient").difference, 0.99) << "the experts' gradients are zero";
}

// --- a step that is not finite is refused, by name of layer and rank

TEST(Faults, GradientThatIsNotFinite) {
  const Config config = experiment({}, broken_data(2, "not_finite", "layer 1 experts"));
  try {
    take_snapshot(config, 1);
    FAIL() << "a step with an infinite gradient was applied";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("step 1 is not applied"));
    EXPECT_THAT(error.what(), HasSubstr("layer 1 experts"));
  }
}

}  // namespace
}  // namespace orthant
