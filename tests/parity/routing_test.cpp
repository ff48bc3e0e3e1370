// Groups of tokens that are split among ranks are routed as if they were on one (router/routing_layout.h): with
// capacity, every drop policy, lotteries, jitter and padding; and an axis of experts carved from such ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/data/batch_builder.h"
#include "parallel/local/thread_world.h"
#include "tests/support/parity.h"
#include "tests/support/paths.h"

namespace orthant::routing_test {
namespace {

using test::axes;
using test::expect_parity;
using test::experiment;
using test::Model;
using test::Overrides;
using test::reference_of;
using testing::HasSubstr;

std::string tokens(int size, const std::string& mode) {
  const bool zigzag = mode == "zigzag";
  return fmt::format("[plugins.tokens]\npath = \"{}/liborthant_plugin_tokens.so\"\nsize = {}\nmode = \"{}\"\n{}",
                     paths::build("tests/parity"), size, zigzag ? "positions" : mode, zigzag ? "zigzag = true\n" : "");
}

const Model models[] = {
    {"dropless", {}},
    {"capacity", {"moe.capacity_factor=1.0"}},
    {"capacity_by_probability", {"moe.capacity_factor=1.0", R"(moe.drop_policy="probability")"}},
    {"switch", {R"(moe.router="switch")", "moe.top_k=1", "moe.capacity_factor=1.0"}},
    {"gshard", {R"(moe.router="gshard")", "moe.capacity_factor=1.0", R"(moe.drop_policy="probability")"}},
    {"jitter_and_dropout", {"moe.jitter=0.3", "model.dropout=0.2", "moe.capacity_factor=1.0"}},
    {"groups_of_half_a_sequence", {"moe.group_tokens=6", "moe.capacity_factor=1.0"}},
    {"groups_of_two_sequences", {"moe.group_tokens=24", "moe.capacity_factor=1.0"}},
    {"micro_batches", {"batch.micro_batch=2", "moe.capacity_factor=1.0", "moe.shared_experts=1"}},
    {"bf16", {R"(run.dtype="bf16")", "moe.capacity_factor=1.0"}},
    {"large_auxiliary_loss", {"moe.aux_loss=10", "moe.z_loss=1", "moe.capacity_factor=1.0"}},
    {"expert_choice", {R"(moe.router="expert_choice")", "moe.top_k=0", "moe.capacity_factor=1.5"}},
    {"sigmoid", {R"(moe.score="sigmoid")", "moe.aux_loss=1", "moe.z_loss=0.1", "moe.capacity_factor=1.0"}},
    {"three_experts_a_token", {"moe.top_k=3", "moe.capacity_factor=1.0"}},
};

class SplitTokens : public testing::TestWithParam<std::tuple<const char*, Model>> {};

TEST_P(SplitTokens, AreRoutedAsOnOneRank) {
  const auto& [mode, model] = GetParam();
  expect_parity(model.overrides, tokens(2, mode));
  expect_parity(model.overrides, axes(2) + tokens(2, mode));
  expect_parity(model.overrides, tokens(3, mode));
}

INSTANTIATE_TEST_SUITE_P(Parity, SplitTokens,
                         testing::Combine(testing::Values("routed", "folded", "positions", "zigzag"),
                                          testing::ValuesIn(models)),
                         [](const auto& cell) {
                           return fmt::format("{}_{}", std::get<0>(cell.param), std::get<1>(cell.param).name);
                         });

// Capacity 1 refuses choices here, and so does chance: the table would prove little otherwise.
TEST(SplitTokens, TheModelsDropChoices) {
  for (const Model& model : models) {
    for (const StepReport& report : reference_of(model.overrides).reports) {
      std::int64_t full = 0, chance = 0;
      for (const LayerCounters& layer : report.layers) {
        full += layer.dropped_by_capacity;
        chance += layer.dropped_by_chance;
      }
      EXPECT_EQ(full > 0, model.name != "dropless" && model.name != "expert_choice") << model.name;
      EXPECT_EQ(chance > 0, model.name == "gshard") << model.name;
    }
  }
}

// Experts are carved from whatever splits tokens: from one of the axes, or from both.
TEST(SplitTokens, ShareExpertsToo) {
  for (const char* mode : {"folded", "positions", "zigzag"}) {
    for (const Model& model : {models[1], models[4], models[5], models[9]}) {
      expect_parity(model.overrides, tokens(2, mode) + axes(0, 2));
      expect_parity(model.overrides, axes(2) + tokens(2, mode) + axes(0, 4));
      expect_parity(model.overrides, axes(2) + tokens(2, mode) + axes(0, 2));
    }
  }
}

// Sequences of different lengths, and some of padding alone: the ranks that hold the ends of sequences have no token.
TEST(SplitTokens, OfPaddingAreNotRouted) {
  HostBatch batch = padding_batch(0, 8, 12);
  const std::vector<std::int32_t> ids = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8};
  for (std::int64_t row = 0; row < 6; ++row) {
    put_document(batch, row, 0, std::span(ids).first(static_cast<std::size_t>(6 - row)), 6 - row);
  }
  const test::FixedSource source(batch, 24);
  for (const char* router : {R"(moe.router="topk")", R"(moe.router="gshard")"}) {
    const Overrides overrides = {router, "moe.capacity_factor=1.0", "moe.aux_loss=0.5"};
    auto first_step = [&](const std::string& plugins) {
      const Config config = experiment(overrides, plugins);
      std::vector<StepReport> reports(check_layout(config));
      run_threads(static_cast<int>(reports.size()), [&](Communicator& communicator) {
        test::TestRank rank(config, communicator, &source);
        reports[communicator.rank()] = rank.trainer().step(0);
      });
      return reports;
    };
    const StepReport one = first_step("").front();
    for (const std::string& plugins : {tokens(2, "folded") + axes(0, 2), tokens(2, "positions") + axes(0, 2),
                                       axes(2) + tokens(2, "zigzag") + axes(0, 4), tokens(3, "routed")}) {
      for (const StepReport& report : first_step(plugins)) {
        EXPECT_EQ(report.tokens, one.tokens) << plugins;
        EXPECT_NEAR(report.loss, one.loss, 1e-6) << plugins;
        EXPECT_NEAR(report.aux_loss, one.aux_loss, 1e-6) << plugins;
        EXPECT_NEAR(report.z_loss, one.z_loss, 1e-6) << plugins;
        EXPECT_NEAR(report.grad_norm / one.grad_norm, 1, 1e-5) << plugins;
        for (std::size_t layer = 0; layer < one.layers.size(); ++layer) {
          EXPECT_EQ(report.layers[layer].load, one.layers[layer].load) << plugins;
          EXPECT_EQ(report.layers[layer].kept, one.layers[layer].kept) << plugins;
          EXPECT_EQ(report.layers[layer].choices, one.layers[layer].choices) << plugins;
        }
      }
    }
  }
}

// Tokens whose experts a rank asks without routing them would get weights from nowhere.
TEST(SplitTokens, MustBeRoutedBeforeTheyAreSent) {
  try {
    check_layout(experiment({}, tokens(2, "experts_only")));
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("axis 'tokens' splits tokens in region 'experts'"));
  }
}

}  // namespace
}  // namespace orthant::routing_test
