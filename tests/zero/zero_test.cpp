// Sharded state changes memory, never the mathematics: each stage against one rank, and in every bit against stage 0.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "core/session/session.h"
#include "parallel/local/thread_world.h"
#include "tests/support/parity.h"
#include "tests/zero/zero_layouts.h"

namespace orthant::zero_test::zero_test {
namespace {

using test::experiment;
using test::Model;
using test::Overrides;
using test::refusal;
using testing::AllOf;
using testing::HasSubstr;

constexpr int steps = 3;

void expect_parity(const Overrides& overrides, const std::string& plugins, int ranks = 0) {
  test::expect_parity(overrides, plugins, {.steps = steps, .ranks = ranks});
}

// --- against one rank

// 225 + 23 * 15 and other odd numbers: every group is padded.
const Model odd = {"odd",
                   {"model.d_model=15", "model.heads=3", "model.d_ff=7", "model.vocab_size=23",
                    R"(model.positions="learned")", R"(model.norm="layernorm")"}};
const Model models[] = {
    {"plain", {}},
    {"micro_batches", {"batch.sequences=16", "batch.micro_batch=2"}},
    {"tied_embeddings", {"model.tie_embeddings=true"}},
    {"bf16", {R"(run.dtype="bf16")"}},
    {"sgd", {R"(optimizer.name="sgd")"}},
    {"clipping", {"optimizer.clip_grad_norm=0.05"}},
    {"recompute", {R"(memory.recompute="full")", "batch.micro_batch=1"}},
    {"dropout_jitter_gshard_micro_batches",
     {"model.dropout=0.2", "moe.jitter=0.2", R"(moe.router="gshard")", "batch.micro_batch=1"}},
    odd,
    {"tied_odd_capacity",
     {"model.tie_embeddings=true", "model.vocab_size=23", "moe.capacity_factor=1.0", "batch.micro_batch=1"}},
};

class Models : public testing::TestWithParam<std::tuple<int, Model>> {};

TEST_P(Models, EqualOneRank) {
  const auto& [stage, model] = GetParam();
  expect_parity(model.overrides, zero(stage, 2));
  expect_parity(model.overrides, zero(stage, 4) + with_expert(2));
}

INSTANTIATE_TEST_SUITE_P(Zero, Models, testing::Combine(testing::Range(1, 4), testing::ValuesIn(models)),
                         [](const auto& cell) {
                           return fmt::format("stage{}_{}", std::get<0>(cell.param), std::get<1>(cell.param).name);
                         });

TEST(Zero, DenseModel) {
  for (int stage = 0; stage <= 3; ++stage) {
    expect_parity({"moe.experts=0"}, zero(stage, 4));
  }
}

// A tied table has more ranks on the stages that hold it than those between have: all make the same groups.
TEST(Zero, HybridOverThreeStagesWithATiedTable) {
  expect_parity({"model.tie_embeddings=true", "model.layers=3"},
                zero(1, 2, "shard_ranks = 2\n") + "[plugins.pipeline]\nsize = 3\n");
}

TEST(Zero, EightRanks) {
  expect_parity({}, zero(3, 8) + with_expert(4));
}

// A plan without a rank to share with: nothing is sharded.
TEST(Zero, OneRankAlone) {
  expect_parity({}, zero(3, 1), 1);
}

// An expert on each rank: its weights are summed over nobody, and stay whole.
TEST(Zero, ExpertsWithoutReplicas) {
  for (int stage = 1; stage <= 3; ++stage) {
    expect_parity({}, zero(stage, 4) + with_expert(4));
  }
}

// Shards on two ranks each, replicas of them across (Zhao et al., "PyTorch FSDP": hybrid sharding).
TEST(Zero, ShardsWithReplicas) {
  for (int stage = 1; stage <= 3; ++stage) {
    const std::string hybrid = zero(stage, 4, "shard_ranks = 2\nwhole_below = 0\n");
    for (const Model& model : {models[0], models[1], models[3], odd}) {
      expect_parity(model.overrides, hybrid);
    }
    expect_parity(models[0].overrides, hybrid + with_expert(2));
    expect_parity(models[0].overrides, zero(stage, 4, "shard_ranks = 1\nwhole_below = 0\n"));
  }
}

// Dense weights are sharded over data x sequence, wherever these ranks come from.
TEST(Zero, OverDataAndSequence) {
  for (int stage = 1; stage <= 3; ++stage) {
    for (const Model& model : {models[0], models[1], models[2]}) {
      expect_parity(model.overrides, zero(stage, 2) + "[plugins.sequence]\nsize = 2\n");
    }
    expect_parity(models[0].overrides, zero(stage, 2) + "[plugins.sequence]\nsize = 2\n" + with_expert(2));
  }
}

// Stages of a pipeline hold, sum and gather different groups at different times; the two ends have tied embeddings in
// common, which no collective within the step may wait for.
TEST(Zero, InAPipeline) {
  const Overrides micro_batches = {"batch.sequences=16", "batch.micro_batch=2"};
  Overrides tied = micro_batches;
  tied.emplace_back("model.tie_embeddings=true");
  for (int stage = 1; stage <= 3; ++stage) {
    for (const char* schedule : {"gpipe", "1f1b", "interleaved"}) {
      const std::string pipeline = fmt::format("[plugins.pipeline]\nsize = 2\nschedule = \"{}\"\n", schedule) +
                                   (std::string(schedule) == "interleaved" ? "chunks = 2\n" : "");
      expect_parity(micro_batches, zero(stage, 2) + pipeline);
      expect_parity(tied, zero(stage, 2) + pipeline);
    }
  }
}

// --- in every bit

// One micro-batch: each gradient is one sum over the ranks, in their order, at every stage.
TEST(Zero, StagesHaveTheSameBits) {
  const std::vector<Overrides> cases = {{"model.dropout=0.1"},
                                        {R"(run.dtype="bf16")"},
                                        {"model.tie_embeddings=true", "model.vocab_size=23"},
                                        {R"(optimizer.name="sgd")", "optimizer.clip_grad_norm=0.05"}};
  for (const Overrides& overrides : cases) {
    for (const std::string& expert : {std::string(), with_expert(2)}) {
      const Snapshot whole = take_snapshot(experiment(overrides, zero(0, 4) + expert), steps);
      EXPECT_EQ(whole.replica_differences, std::vector<std::string>());
      for (int stage = 1; stage <= 3; ++stage) {
        expect_same_bits(take_snapshot(experiment(overrides, zero(stage, 4) + expert), steps), whole,
                         fmt::format("{} stage {}", overrides[0], stage));
      }
    }
  }
}

// Several micro-batches, layer by layer: a rank adds them up first, and then there is one sum, as at stage 0. (Tied
// embeddings get what the head and the embedding add in another order than without `layered`.)
TEST(Zero, LayeredStagesHaveTheSameBits) {
  for (const Overrides& overrides :
       {Overrides{"batch.micro_batch=1", "model.dropout=0.1"}, Overrides{"batch.micro_batch=1", R"(run.dtype="bf16")"},
        Overrides{"batch.micro_batch=2", "model.tie_embeddings=true", "moe.capacity_factor=1.0"}}) {
    const bool tied = overrides.size() > 2;
    auto layered = [&](int stage) { return zero(stage, 2, "whole_below = 0\nlayered = true\n") + with_expert(2); };
    const Snapshot whole = take_snapshot(experiment(overrides, tied ? layered(0) : zero(0, 2) + with_expert(2)), steps);
    for (int stage = 0; stage <= 3; ++stage) {
      expect_same_bits(take_snapshot(experiment(overrides, layered(stage)), steps), whole,
                       fmt::format("{} stage {}", overrides[1], stage));
      expect_parity(overrides, layered(stage));
    }
  }
}

TEST(Zero, WhatStaysWholeAndPrefetchChangeNoBit) {
  for (const Overrides& overrides : {Overrides{}, Overrides{"batch.micro_batch=1"}}) {
    const std::string expert = with_expert(2);
    const Snapshot expected = take_snapshot(experiment(overrides, zero(3, 4) + expert), steps);
    for (const char* more : {"whole_below = 0\nprefetch = false\n", "whole_below = 1000000\n", "whole_below = 1200\n",
                             "whole_below = 1200\nprefetch = false\n"}) {
      expect_same_bits(take_snapshot(experiment(overrides, zero(3, 4, more) + expert), steps), expected, more);
    }
  }
}

TEST(Zero, TwoRunsHaveTheSameBits) {
  for (const char* more : {"whole_below = 0\n", "whole_below = 0\nshard_ranks = 2\n"}) {
    const Config config = experiment({"batch.micro_batch=1"}, zero(3, 4, more) + with_expert(2));
    const Snapshot once = take_snapshot(config, steps);
    expect_same_bits(take_snapshot(config, steps), once, more);
    EXPECT_EQ(once.replica_differences, std::vector<std::string>());
  }
}

TEST(Zero, GuardedMemoryIsTouchedByOperationsOnly) {
  for (int stage = 1; stage <= 3; ++stage) {
    Config guarded = experiment({"batch.micro_batch=2"}, zero(stage, 2, "whole_below = 500\n"));
    const Snapshot expected = take_snapshot(guarded, 2);
    guarded.settings.run.device = "guarded";
    expect_same_bits(take_snapshot(guarded, 2), expected, fmt::format("stage {}", stage));
  }
}

// A keeper before or behind in the chain finds whole gradients, and changes them before they are summed.
TEST(Zero, AnotherKeeperFindsWholeGradients) {
  const std::string scale = "[plugins.template]\nfactor = 2.0\n";
  const Snapshot whole = take_snapshot(experiment({}, zero(0, 4) + scale), steps);
  for (int stage = 1; stage <= 3; ++stage) {
    expect_same_bits(take_snapshot(experiment({}, zero(stage, 4) + scale), steps), whole, "template last");
    expect_same_bits(take_snapshot(experiment({}, scale + zero(stage, 4)), steps), whole, "template first");
  }
}

// What is beyond a group's elements is zero, in gradients that are made anew for each layer too.
TEST(Zero, PaddingIsZero) {
  for (int stage = 1; stage <= 3; ++stage) {
    Overrides overrides = odd.overrides;
    overrides.emplace_back("moe.experts=3");  // their gradients are overwritten, not zeroed first
    const Config config = experiment(overrides, zero(stage, 4));
    run_threads(4, [&](Communicator& communicator) {
      test::TestRank rank(config, communicator);
      rank.trainer().step(0);
      {
        std::vector<Tensor> litter;  // memory that the next step is likely to be given
        for (const auto& group : rank.trainer().parameters().groups()) {
          for (int i = 0; i < 3; ++i) {
            litter.push_back(rank.session().plan().device().empty(DType::f32, {group->padded}));
            rank.stream().fill(litter.back(), std::numeric_limits<double>::quiet_NaN());
          }
        }
      }
      rank.trainer().step(1);
      std::int64_t padding = 0;
      for (const auto& group : rank.trainer().parameters().groups()) {
        const std::int64_t end = std::min(group->elements - group->owned_begin, group->owned_elements);
        padding += group->owned_elements - end;
        std::vector<Tensor> all = {group->master, group->owned_grad};
        for (const ParamState& state : group->states) {
          all.push_back(state.values);
        }
        for (const Tensor& owned : all) {
          std::vector<float> host(group->owned_elements);
          rank.stream().download(host.data(), owned);
          host.erase(host.begin(), host.begin() + end);
          EXPECT_THAT(host, testing::Each(0.0f)) << group->name << " at stage " << stage;
        }
      }
      EXPECT_EQ(padding > 0, communicator.rank() == 3);
    });
  }
}

// --- what is refused

TEST(Zero, PartsThatDoNotDivideAreRefusedAtTheirKey) {
  EXPECT_THAT(refusal({}, zero(2, 4, "shard_ranks = 3\n")),
              AllOf(HasSubstr("4 ranks"), HasSubstr("shard_ranks = 3"), HasSubstr("^")));
  EXPECT_THAT(refusal({}, zero(4, 4)), HasSubstr("zero"));
  const std::string pipeline = "[plugins.pipeline]\nsize = 2\n";
  EXPECT_THAT(refusal({}, zero(2, 2, "layered = true\n") + pipeline),
              AllOf(HasSubstr("second schedule"), HasSubstr("layered = true\n"), HasSubstr("leave it out"),
                    HasSubstr("change plugins.data.layered")));
  EXPECT_THAT(refusal({}, zero(2, 4, "shard_ranks = 4\n") + with_expert(2)),
              "(accepted with 4 ranks)");                                                // two ranks shard an expert
  EXPECT_THAT(refusal({}, zero(0, 4, "shard_ranks = 3\n")), "(accepted with 4 ranks)");  // nothing is sharded
}

}  // namespace
}  // namespace orthant::zero_test::zero_test
