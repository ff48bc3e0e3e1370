// A part, a model, a source and a hook of one's own, out of tree: they train, and under every axis as on one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/verify/verify.h"
#include "core/session/session.h"
#include "tests/support/experiment.h"
#include "tests/support/parity.h"
#include "tests/support/paths.h"

namespace orthant::parts_test {
namespace {

using test::experiment;
using test::Overrides;

std::string table(const std::string& plugin, const std::string& keys = "") {
  return fmt::format("[plugins.{}]\npath = \"{}\"\n{}", plugin, paths::out_of_tree(plugin), keys);
}

struct Layout {
  const char* name;
  const char* tables;
  int ranks;
};
void PrintTo(const Layout& layout, std::ostream* out) {
  *out << layout.name;
}

const Layout layouts[] = {
    {"data", "[plugins.data]\nsize = 2\n", 2},
    {"tensor", "[plugins.tensor]\nsize = 2\n", 2},
    {"rows_cut", "[plugins.tensor]\nsize = 2\nsequence_parallel = true\n", 2},
    {"sequence", "[plugins.sequence]\nsize = 2\n", 2},
    {"zero_tensor", "[plugins.data]\nsize = 2\nzero = 3\nwhole_below = 0\n[plugins.tensor]\nsize = 2\n", 4},
    {"pipeline_zero_expert",
     "[plugins.pipeline]\nsize = 2\n[plugins.data]\nsize = 2\nzero = 2\nwhole_below = 0\n[plugins.expert]\nsize = 2\n",
     4},
    {"all",
     "[plugins.pipeline]\nsize = 2\n[plugins.data]\nsize = 2\nzero = 3\nwhole_below = 0\n[plugins.expert]\nsize = 2\n"
     "[plugins.tensor]\nsize = 2\n",
     8},
};

void expect_verified(const Overrides& overrides, const std::string& plugins, int ranks) {
  const Config config = experiment(overrides, plugins);
  EXPECT_EQ(check_layout(config), ranks);
  const VerifyReport report = verify(config, 2);
  EXPECT_TRUE(report.ok()) << test::differences(report);
}

class OutOfTree : public testing::TestWithParam<Layout> {};

TEST_P(OutOfTree, PartEqualsOneRank) {
  const std::string plugins = GetParam().tables + table("gated_unit");
  // Every other block has experts, so that both kinds of FFN are there.
  expect_verified({R"(model.ffn="gated_unit")", "moe.every=2", "model.layers=4", "batch.micro_batch=1"}, plugins,
                  GetParam().ranks);
  expect_verified(
      {R"(model.ffn="gated_unit")", "moe.experts=4", "moe.every=2", R"(memory.recompute="full")", "model.layers=3"},
      plugins, GetParam().ranks);
}

TEST_P(OutOfTree, ObjectiveEqualsOneRank) {
  expect_verified({R"(train.objective="focal")", "batch.micro_batch=1"},
                  GetParam().tables + table("focal", "gamma = 1.5\nsmoothing = 0.2\n"), GetParam().ranks);
}

TEST_P(OutOfTree, ModelEqualsOneRank) {
  const std::string plugins = GetParam().tables + table("reminded", "width = 5\n");
  expect_verified({R"(model.kind="reminded")", "moe.every=2", "model.layers=4", "batch.micro_batch=1"}, plugins,
                  GetParam().ranks);
  expect_verified({R"(model.kind="reminded")", R"(memory.recompute="full")", "model.layers=3", "model.mtp_depth=1",
                   "model.tie_embeddings=true"},
                  plugins, GetParam().ranks);
}

TEST_P(OutOfTree, SourceEqualsOneRank) {
  expect_verified({R"(data.source="arithmetic")", "batch.micro_batch=1"}, GetParam().tables + table("arithmetic"),
                  GetParam().ranks);
}

TEST_P(OutOfTree, HookEqualsOneRank) {
  // A loss above half its mean is called a spike: each step from the second on lowers the learning rate.
  expect_verified({"batch.micro_batch=1"}, GetParam().tables + table("spike_watcher", "above = 0.5\n"),
                  GetParam().ranks);
}

TEST_P(OutOfTree, CapacityOfAHookEqualsOneRank) {
  expect_verified({"batch.micro_batch=1", "moe.capacity_factor=1.0"},
                  GetParam().tables + table("capacity_schedule", "from = 0.25\nsteps = 4.0\n"), GetParam().ranks);
}

INSTANTIATE_TEST_SUITE_P(Plugins, OutOfTree, testing::ValuesIn(layouts),
                         [](const auto& made) { return made.param.name; });

TEST(OutOfTreePart, HasTheShapesAndTheNamesThatItSays) {
  test::OneRank rank(experiment({R"(model.ffn="gated_unit")", "moe.experts=0"}, table("gated_unit")));
  EXPECT_THAT(rank->names(), testing::AllOf(testing::Contains("model.layers.1.mlp.gate.weight"),
                                            testing::Contains("model.layers.1.mlp.down.weight"),
                                            testing::Not(testing::Contains("model.layers.1.mlp.up_proj.weight"))));
  EXPECT_EQ(rank->weight("model.layers.0.mlp.down.weight").size(), 16u * 16u);
  const StepReport report = rank->trainer().gradients(0);
  EXPECT_GT(report.grad_norm, 0);
}

TEST(OutOfTreeSource, LearnsToAdd) {
  test::OneRank rank(experiment({R"(data.source="arithmetic")", "moe.experts=0", "model.d_model=32", "model.d_ff=64",
                                 "data.sequence_length=8", "batch.sequences=64", "optimizer.lr=0.01"},
                                table("arithmetic", "digits = 1\n")));
  const double before = rank->trainer().validate();
  double last = 0;
  for (int step = 0; step < 40; ++step) {
    last = rank->trainer().step(step).loss;
  }
  EXPECT_LT(last, 0.6 * before);
}

TEST(OutOfTreeHook, LowersTheRateAfterASpikeAndSaysSo) {
  test::OneRank rank(experiment({}, table("spike_watcher", "above = 0.5\nlower = 0.25\n")));
  const StepReport first = rank->trainer().step(0), second = rank->trainer().step(1), third = rank->trainer().step(2);
  EXPECT_EQ(first.metrics.at("spike_watcher.spikes"), 0);
  EXPECT_EQ(second.metrics.at("spike_watcher.spikes"), 1);
  EXPECT_DOUBLE_EQ(second.lr, 0.01);
  EXPECT_DOUBLE_EQ(third.lr, 0.01 * 0.25);
  EXPECT_DOUBLE_EQ(third.metrics.at("spike_watcher.lr_factor"), 0.25 * 0.25);
}

// Experts that send equal blocks make them smaller, too.
TEST(OutOfTreeHook, ChangesTheCapacityOfPaddedExchanges) {
  expect_verified({"moe.capacity_factor=1.0"},
                  "[plugins.data]\nsize = 2\n[plugins.expert]\nsize = 2\npadded = true\n" +
                      table("capacity_schedule", "from = 0.25\nsteps = 4.0\n"),
                  2);
}

}  // namespace
}  // namespace orthant::parts_test
