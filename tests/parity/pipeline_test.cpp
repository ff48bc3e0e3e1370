// Layers divided among stages: every schedule trains as one rank does, in any combination with other axes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <mutex>

#include "apps/check/recording_communicator.h"
#include "core/dry_run/planning.h"
#include "parallel/local/thread_world.h"
#include "tests/support/parity.h"

namespace orthant::pipeline_test {
namespace {

using test::axes;
using test::expect_same_bits;
using test::experiment;
using test::joined;
using test::Model;
using test::Overrides;
using test::refusal;
using test::same_bits;
using test::TestRank;
using testing::HasSubstr;

std::string stages(int size, const std::string& schedule = "1f1b", int chunks = 1) {
  return fmt::format("[plugins.pipeline]\nsize = {}\nschedule = \"{}\"\nchunks = {}\n", size, schedule, chunks);
}

// `only_here` does not change the mathematics: micro-batches.
void expect_parity(const Overrides& overrides, const std::string& plugins, const Overrides& only_here) {
  test::expect_parity(overrides, plugins, {.only_here = only_here});
}

// --- the table: schedules x stages x micro-batches

const Overrides eight_layers = {"model.layers=6", "batch.sequences=12"};

TEST(Pipeline, EveryScheduleEqualsOneRank) {
  for (int p : {2, 3, 4}) {
    for (int micro_batch : {12, 6, 4, 3, 2, 1}) {  // of 12 sequences: 1, 2, 3, 4, 6 and 12 of them
      const Overrides size = {fmt::format("batch.micro_batch={}", micro_batch)};
      expect_parity(eight_layers, stages(p, "gpipe"), size);
      expect_parity(eight_layers, stages(p, "1f1b"), size);
      if (12 / micro_batch % p == 0) {
        expect_parity(eight_layers, stages(p, "interleaved", 2), size);
      }
    }
  }
  expect_parity(eight_layers, stages(2, "interleaved", 4), {"batch.micro_batch=3"});
  expect_parity(eight_layers, stages(8, "1f1b"), {"batch.micro_batch=3"});
}

// Several chunks of one stage: nothing is sent.
TEST(Pipeline, OneStageOfSeveralChunks) {
  test::expect_parity({"model.layers=2"}, stages(1, "interleaved", 4),
                      {.ranks = 1, .only_here = {"batch.micro_batch=2"}});
}

// --- with other axes, over what a model can be

class PipelineModels : public testing::TestWithParam<Model> {};

TEST_P(PipelineModels, EqualOneRank) {
  const Overrides overrides = joined({"model.layers=4"}, GetParam().overrides);
  const Overrides size = {"batch.micro_batch=1"};
  expect_parity(overrides, stages(2), size);
  expect_parity(overrides, stages(2) + axes(2), size);
  expect_parity(overrides, axes(2, 2) + stages(2), size);
  expect_parity(overrides, stages(2, "interleaved", 3) + axes(2, 2), size);
  expect_parity(overrides, stages(3, "gpipe"), size);
  expect_parity(overrides, axes(2) + stages(3), size);
}

const Model models[] = {
    {"topk", {}},
    {"capacity", {"moe.capacity_factor=1.0"}},
    {"gshard_dropout_jitter", {R"(moe.router="gshard")", "model.dropout=0.2", "moe.jitter=0.2"}},
    {"tied_embeddings", {"model.tie_embeddings=true"}},
    {"every_third_block_routed", {"moe.every=3"}},  // stages without experts
    {"shared_experts", {"moe.shared_experts=1"}},
    {"bf16", {R"(run.dtype="bf16")"}},
    {"gpt2", {R"(model.positions="learned")", R"(model.norm="layernorm")", R"(model.activation="gelu")"}},
    {"clipping", {"optimizer.clip_grad_norm=0.05"}},
};
INSTANTIATE_TEST_SUITE_P(Parity, PipelineModels, testing::ValuesIn(models),
                         [](const auto& model) { return model.param.name; });

TEST(Pipeline, DenseModel) {
  const Overrides dense = {"moe.experts=0", "model.tie_embeddings=true"};
  expect_parity(dense, stages(4), {"batch.micro_batch=2"});
  expect_parity(dense, stages(2) + axes(4), {"batch.micro_batch=1"});
}

// Sums of small buckets run on a stream of their own all the while, the tied table's across stages.
TEST(Pipeline, TiedTableOverManyRanksAndBuckets) {
  const Overrides tied = {"model.layers=4", "model.tie_embeddings=true"};
  for (const std::string& plugins :
       {stages(4) + "[plugins.data]\nsize = 2\nbucket_mb = 0.001\n",
        "[plugins.data]\nsize = 2\nbucket_mb = 0.001\n[plugins.expert]\nsize = 2\n" + stages(2, "interleaved", 2)}) {
    expect_parity(tied, plugins, {"batch.micro_batch=1"});
  }
}

// Shards of gradients and weights within each stage; the tied table's owners are on two.
TEST(Pipeline, ShardedState) {
  const Overrides tied = {"model.layers=4", "model.tie_embeddings=true"};
  for (int zero : {1, 2, 3}) {
    const std::string data = fmt::format("[plugins.data]\nsize = 2\nzero = {}\nwhole_below = 0\n", zero);
    expect_parity(tied, stages(3) + data, {"batch.micro_batch=1"});
    expect_parity(tied, data + "[plugins.expert]\nsize = 2\n" + stages(2, "interleaved", 2), {"batch.micro_batch=1"});
  }
}

// --- bits

TEST(Pipeline, TwoRunsHaveTheSameBits) {
  const Overrides overrides = {"model.layers=4", "model.dropout=0.1", "moe.jitter=0.1", "moe.capacity_factor=1.0",
                               "batch.micro_batch=1"};
  for (const std::string& plugins : {stages(4), stages(2, "interleaved", 2) + axes(2, 2)}) {
    const Config config = experiment(overrides, plugins);
    expect_same_bits(take_snapshot(config, 3), take_snapshot(config, 3));
  }
}

// Gradients of a chunk are added in the order of the micro-batches, whatever the schedule and wherever the layers are.
TEST(Pipeline, AllSchedulesHaveTheBitsOfOneRankWithTheSameMicroBatches) {
  const Overrides overrides = {"model.layers=4", "batch.micro_batch=2", "model.dropout=0.1"};
  const Snapshot one = take_snapshot(experiment(overrides), 2);
  for (const std::string& plugins : {stages(2, "gpipe"), stages(3, "1f1b"), stages(2, "interleaved", 3)}) {
    const Snapshot many = take_snapshot(experiment(overrides, plugins), 2);
    for (const auto& [name, gradient] : one.gradients[0]) {
      EXPECT_TRUE(same_bits(many.gradients[0].at(name), gradient)) << name << " over\n" << plugins;
    }
    EXPECT_EQ(many.reports[0].loss, one.reports[0].loss) << plugins;
  }
}

TEST(Pipeline, GuardedDevice) {
  const Overrides overrides = {"model.layers=4", "batch.micro_batch=1", "model.tie_embeddings=true"};
  for (const std::string& plugins : {stages(2, "interleaved", 2), stages(3) + axes(2)}) {
    Config config = experiment(overrides, plugins);
    const Snapshot expected = take_snapshot(config, 2);
    config.settings.run.device = "guarded";
    expect_same_bits(take_snapshot(config, 2), expected);
  }
}

// --- what is not training

// Five held-out sequences, so that the last passes are filled up.
TEST(Pipeline, ValidationLossDoesNotDependOnTheLayout) {
  const auto losses = [](const std::string& plugins) {
    const Config config = experiment({"model.layers=4", "data.validation_sequences=5", "moe.capacity_factor=1.0",
                                      "model.dropout=0.2", "batch.micro_batch=1"},
                                     plugins);
    std::vector<double> found;
    std::mutex mutex;
    run_threads(check_layout(config), [&](Communicator& communicator) {
      TestRank rank(config, communicator);
      double loss = rank.trainer().validate();
      rank.trainer().step(0);
      loss += rank.trainer().validate();
      const std::lock_guard lock(mutex);
      found.push_back(loss);
    });
    return found;
  };
  const double one = losses("").front();
  for (const std::string& plugins :
       {stages(2), stages(4), stages(3, "gpipe"), stages(2, "interleaved", 2) + axes(2, 2), axes(4) + stages(2)}) {
    EXPECT_THAT(losses(plugins), testing::Each(testing::DoubleNear(one, 2e-6))) << plugins;
  }
}

TEST(Pipeline, EveryMemberOfAGroupCallsTheSameCollectives) {
  const Config config = experiment(
      {"model.layers=3", "moe.every=2", "model.tie_embeddings=true", "batch.micro_batch=1"}, stages(2) + axes(2, 2));
  CallRecord record;
  run_threads(4, [&](Communicator& communicator) {
    RecordingCommunicator recording(communicator, record);
    TestRank rank(config, recording);
    rank.trainer().step(0);
    rank.trainer().validate();
  });
  ASSERT_FALSE(record.calls.empty());
  for (const auto& [group, by_rank] : record.calls) {
    for (const auto& [rank, calls] : by_rank) {
      EXPECT_EQ(calls, by_rank.begin()->second) << group << ": rank " << rank;
    }
    EXPECT_EQ(by_rank.size(), record.members.at(group)) << group << ": some member never called";
  }
}

// Each boundary between stages: [T, d] once forward and once backward for every micro-batch. T = 2 x 12, d = 16, fp32,
// four micro-batches of a rank's eight sequences; the middle stage of three has two boundaries, and sends one way each.
TEST(Pipeline, BytesOnTheWire) {
  const Config config = experiment({"model.layers=4", "batch.micro_batch=2"}, stages(3));
  const auto sent = [&](int rank) {
    std::int64_t bytes = 0;
    for (const CollectiveCall& call : plan_rank(config, rank).step.calls) {
      bytes += std::string(call.operation) == "send" ? call.times * call.bytes_sent : 0;
    }
    return bytes;
  };
  const std::int64_t boundary = 4 * (2 * 12) * 16 * 4;
  EXPECT_EQ(sent(0), boundary);
  EXPECT_EQ(sent(1), 2 * boundary);
  EXPECT_EQ(sent(2), boundary);
}

// --- a step that is not finite

TEST(Pipeline, LossThatIsNotFiniteNamesLayerAndRank) {
  for (const std::string& plugins : {stages(2) + axes(2), stages(2, "interleaved", 2) + axes(2)}) {
    const Config config = experiment({"model.layers=4", "batch.micro_batch=2"}, plugins);
    std::mutex mutex;
    std::vector<std::string> messages;
    int holder = -1;
    run_threads(4, [&](Communicator& communicator) {
      TestRank rank(config, communicator);
      const std::string poisoned = "model.layers.3.self_attn.o_proj.weight";
      if (communicator.rank() % 2 == 1 && rank.holds(poisoned)) {
        std::vector<float> weight = rank.weight(poisoned);
        weight[5] = std::numeric_limits<float>::quiet_NaN();
        rank.set_weight(poisoned, weight);
        const std::lock_guard lock(mutex);
        holder = communicator.rank();
      }
      std::string message;
      try {
        rank.trainer().step(0);
      } catch (const Error& error) {
        message = error.what();
      }
      const std::lock_guard lock(mutex);
      messages.push_back(message);
    });
    ASSERT_EQ(messages.size(), 4u);
    for (const std::string& message : messages) {
      EXPECT_THAT(message, HasSubstr("step 1 is not applied"));
      EXPECT_THAT(message, HasSubstr(fmt::format("layer 3 on rank {}", holder)));
    }
  }
}

// --- refused before start

TEST(Pipeline, WhatDoesNotFitIsRefused) {
  EXPECT_THAT(refusal({}, stages(5)),
              HasSubstr("5 stages need 5 pieces of at least one layer, but the model has 4 layers"));
  EXPECT_THAT(refusal({}, stages(5)), HasSubstr("model.layers"));
  EXPECT_THAT(refusal({"batch.micro_batch=4"}, stages(2, "interleaved", 3)),
              HasSubstr("2 stages of 3 chunks need 6 pieces"));
  EXPECT_THAT(refusal({}, stages(2, "interleaved", 1)), HasSubstr("\"interleaved\" needs at least 2 chunks"));
  EXPECT_THAT(refusal({}, stages(2, "gpipe", 2)), HasSubstr("the other schedules have 1"));
  EXPECT_THAT(refusal({"batch.micro_batch=8"}, stages(2, "interleaved", 2)),
              testing::AllOf(HasSubstr("the 1 micro-batches of a step"), HasSubstr("batch.micro_batch")));
  // Each at its value, with what to change.
  EXPECT_THAT(refusal({}, stages(2, "interleaved", 1)),
              testing::AllOf(HasSubstr("schedule = \"interleaved\"\n"), HasSubstr("change plugins.pipeline.schedule")));
  EXPECT_THAT(refusal({}, stages(2, "gpipe", 2)),
              testing::AllOf(HasSubstr("chunks = 2\n"), HasSubstr("change plugins.pipeline.chunks")));
  EXPECT_THAT(refusal({"batch.micro_batch=8"}, stages(2, "interleaved", 2)),
              testing::AllOf(HasSubstr("batch.micro_batch=8\n"), HasSubstr("change batch.micro_batch")));
  EXPECT_THAT(refusal({}, stages(2, "sometimes")), HasSubstr("sometimes"));
  EXPECT_EQ(refusal({"batch.micro_batch=4"}, stages(2, "interleaved", 2)), "(accepted with 2 ranks)");
}

}  // namespace
}  // namespace orthant::pipeline_test
