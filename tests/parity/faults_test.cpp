// The suite must be able to fail: axes that are wrong on purpose (broken/*.cpp) are caught, with the quantity and the
// axis that show it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/verify/verify.h"
#include "tests/support/experiment.h"
#include "tests/support/paths.h"

namespace orthant::faults_test {
namespace {

using test::axes;
using test::experiment;
using testing::AllOf;
using testing::HasSubstr;

std::string broken_data(int size, const std::string& fault, const std::string& group = "layer 1") {
  return fmt::format(
      "[plugins.broken]\npath = \"{}/liborthant_plugin_broken.so\"\nsize = {}\nfault = \"{}\"\ngroup = "
      "\"{}\"\n",
      paths::build("tests/parity"), size, fault, group);
}

std::string broken_expert(int size, const std::string& fault) {
  return fmt::format(
      "[plugins.broken_expert]\npath = \"{}/liborthant_plugin_broken_expert.so\"\nsize = {}\nfault = \"{}\"\n",
      paths::build("tests/parity"), size, fault);
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

// A norm that counted replicas would be too large; ranks that all call themselves the owner are refused before.
TEST(Faults, TwoOwnersOfOneRangeAreRefused) {
  const std::string broken =
      fmt::format("[plugins.broken]\npath = \"{}/liborthant_plugin_broken.so\"\n", paths::build("tests/parity"));
  const VerifyReport report = verify(experiment({}, broken + "size = 2\nfault = \"owner\"\n" + axes(2)), 1);
  EXPECT_THAT(report.first_difference, AllOf(HasSubstr("plugin 'broken' shares out"), HasSubstr("two owners")));
}

// --- the classic mistakes, one line each: which plugin, in which model, and what verify must say

struct Mistake {
  const char* name;
  std::string plugin;  // the broken one, and what it says is to blame
  std::string keys;    // of its table
  std::string others;  // tables of sound axes beside it
  test::Overrides overrides;
  const char* quantity;     // that differs
  const char* first;        // words of the first difference
  const char* blamed = "";  // where more than the plugin is needed to show it
};
void PrintTo(const Mistake& mistake, std::ostream* out) {
  *out << mistake.name;
}

std::string table_of(const Mistake& m) {
  return fmt::format("[plugins.{}]\npath = \"{}/liborthant_plugin_{}.so\"\n{}{}", m.plugin,
                     paths::build("tests/parity"), m.plugin, m.keys, m.others);
}

const test::Overrides dense = {"moe.experts=0", "data.sequence_length=16"};
const std::string fault_of_2 = "size = 2\nfault = ";

const Mistake mistakes[] = {
    {"gradients_averaged", "broken", fault_of_2 + "\"mean\"\n", axes(2), {}, "gradient", "gradient of step 1"},
    {"sum_of_routers_forgotten",
     "broken",
     fault_of_2 + "\"one_class\"\n",
     axes(2),
     {},
     "gradient",
     "block_sparse_moe.gate.weight"},
    {"balance_loss_counted_by_every_rank",
     "broken_axis",
     "size = 2\nlie = \"router_split\"\n",
     axes(2),
     {},
     "aux_loss",
     "routing counters of step 1"},
    {"balance_loss_counted_by_one_rank",
     "broken_axis",
     "size = 2\nlie = \"router_whole\"\n",
     axes(2),
     {},
     "aux_loss",
     "step 1"},
    {"every_rank_reads_the_same_data", "broken_axis", "size = 2\nlie = \"same_data\"\n", axes(2), dense, "gradient",
     "step 1"},
    {"backward_is_no_adjoint", "broken_ffn", fault_of_2 + "\"no_sum\"\n", axes(2), dense, "gradient",
     "gradient of step 1"},
    {"replicated_gradient_summed", "broken_ffn", fault_of_2 + "\"sum_twice\"\n", axes(2), dense, "gradient",
     "gradient of step 1"},
    {"outputs_averaged", "broken_ffn", fault_of_2 + "\"mean\"\n", axes(2), dense, "loss", "loss of step 1"},
    {"one_part_of_a_sum_left_out", "broken_ffn", fault_of_2 + "\"stale_add\"\n", axes(2), dense, "loss",
     "loss of step 1"},
    {"loss_divided_by_ranks", "broken", fault_of_2 + "\"head\"\n", axes(2), {}, "gradient", "gradient of step 1"},
    {"tied_embedding_not_summed",
     "broken",
     fault_of_2 + "\"forgotten\"\ngroup = \"embedding\"\n",
     axes(2),
     {"model.tie_embeddings=true"},
     "gradient",
     "gradient of step 1 model.embed_tokens.weight"},
    {"replicas_drift",
     "broken",
     fault_of_2 + "\"drift\"\n",
     "",
     {R"(optimizer.name="sgd")"},
     "replicas",
     "replicas of"},
    {"weights_not_gathered_after_a_step",
     "broken",
     fault_of_2 + "\"stale\"\n",
     axes(2),
     {},
     "later gradient",
     "step 2"},
    {"rows_of_two_ranks_exchanged",
     "broken_expert",
     "size = 4\nfault = \"swapped\"\n",
     axes(4),
     {},
     "loss",
     "step 1",
     "broken_expert x data"},
    {"experts_in_another_order",
     "broken_expert",
     "size = 4\nfault = \"shuffled\"\n",
     axes(4),
     {},
     "loss",
     "step 1",
     "broken_expert x data"},
    {"steps_of_a_ring_skipped", "broken_axis", "size = 2\nlie = \"slices\"\n", axes(2), dense, "loss",
     "loss of step 1"},
};

class Mistakes : public testing::TestWithParam<Mistake> {};

TEST_P(Mistakes, AreCaughtAndNamed) {
  const Mistake& mistake = GetParam();
  const VerifyReport report = verify(experiment(mistake.overrides, table_of(mistake)), 2);
  ASSERT_FALSE(report.ok());
  EXPECT_FALSE(row_of(report, mistake.quantity).ok()) << report.first_difference;
  EXPECT_THAT(report.first_difference, HasSubstr(mistake.first));
  EXPECT_EQ(report.axes, *mistake.blamed == '\0' ? mistake.plugin : mistake.blamed);
}

INSTANTIATE_TEST_SUITE_P(Faults, Mistakes, testing::ValuesIn(mistakes),
                         [](const auto& mistake) { return mistake.param.name; });

// What the mistakes are made in is right without them.
TEST(Faults, ThePluginsOfTheMistakesAreSound) {
  for (const char* keys : {"size = 2\nfault = \"none\"\n", "size = 2\nfault = \"sharded\"\n"}) {
    EXPECT_EQ(verify(experiment({}, table_of({"", "broken", keys, axes(2), {}, "", ""})), 2).first_difference, "");
  }
  EXPECT_EQ(
      verify(experiment({}, table_of({"", "broken_axis", "size = 2\n", axes(2), {}, "", ""})), 2).first_difference, "");
  EXPECT_EQ(
      verify(experiment(dense, table_of({"", "broken_ffn", "size = 2\n", axes(2), {}, "", ""})), 2).first_difference,
      "");
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
}  // namespace orthant::faults_test
