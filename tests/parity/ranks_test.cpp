// What every rank of a layout must agree on: bits of replicas, the norm, the order of collectives; and what a rank with
// nothing to do does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <mutex>

#include "apps/check/recording_communicator.h"
#include "core/data/batch_builder.h"
#include "parallel/local/thread_world.h"
#include "tests/support/parity.h"

namespace orthant::ranks_test {
namespace {

using test::axes;
using test::expect_same_bits;
using test::experiment;
using test::Overrides;
using test::same_bits;
using test::TestRank;

TEST(Ranks, TwoRunsOfOneLayoutHaveTheSameBits) {
  const Overrides overrides = {"model.dropout=0.1", "moe.jitter=0.1", "moe.capacity_factor=1.0", "batch.micro_batch=1"};
  for (const std::string& plugins : {axes(0), axes(4, 2), axes(4, 4)}) {
    const Config config = experiment(overrides, plugins);
    expect_same_bits(take_snapshot(config, 3), take_snapshot(config, 3));
  }
}

// A keeper that changes gradients comes before their sum has started, whichever plugin is written first: the sums run
// on a stream of their own.
TEST(Ranks, GradientsThatAPluginChangesAreSummedAfterwards) {
  const Overrides overrides = {"model.d_model=128", "plugins.data.bucket_mb=0.01"};
  const std::string scale = "[plugins.template]\nfactor = 2.0\n";
  const Snapshot before = take_snapshot(experiment(overrides, scale + axes(4, 2)), 6);
  expect_same_bits(take_snapshot(experiment(overrides, axes(4, 2) + scale), 6), before);
  const Snapshot plain = take_snapshot(experiment(overrides, axes(4, 2)), 1);
  EXPECT_DOUBLE_EQ(before.reports[0].grad_norm, 2 * plain.reports[0].grad_norm);
}

TEST(Ranks, ReplicasAreBitIdenticalAfterAHundredSteps) {
  const Overrides overrides = {"run.steps=100", "data.sequence_length=8", "model.dropout=0.1"};
  for (const std::string& plugins : {axes(4), axes(4, 2)}) {
    const Snapshot after = take_snapshot(experiment(overrides, plugins), 100);
    EXPECT_THAT(after.replica_differences, testing::IsEmpty());
    EXPECT_LT(after.reports.back().loss, after.reports.front().loss) << "and they learn";
  }
}

TEST(Ranks, InitialWeightsDoNotDependOnTheLayout) {
  const Overrides overrides = {R"(model.positions="learned")", "moe.shared_experts=1"};
  const Snapshot one = take_snapshot(experiment(overrides), 0);
  ASSERT_FALSE(one.state.empty());
  for (const std::string& plugins : {axes(2), axes(4, 2), axes(4, 4), axes(8, 4)}) {
    expect_same_bits(take_snapshot(experiment(overrides, plugins), 0), one);
  }
  // By name, and not all alike.
  const auto& q0 = one.state.at("weight/model.layers.0.self_attn.q_proj.weight");
  const auto& q1 = one.state.at("weight/model.layers.1.self_attn.q_proj.weight");
  const auto& k0 = one.state.at("weight/model.layers.0.self_attn.k_proj.weight");
  EXPECT_FALSE(same_bits(q0, q1));
  EXPECT_FALSE(same_bits(q0, k0));
}

// One number on every rank, equal to the norm of the gathered gradients.
TEST(Ranks, OneGradientNorm) {
  const Config config = experiment({}, axes(4, 2));
  const Snapshot gathered = take_snapshot(config, 1);
  double squares = 0;
  for (const auto& [name, gradient] : gathered.gradients[0]) {
    for (float g : gradient) {
      squares += static_cast<double>(g) * static_cast<double>(g);
    }
  }
  std::mutex mutex;
  std::vector<double> norms;
  run_threads(4, [&](Communicator& communicator) {
    TestRank rank(config, communicator);
    const double norm = rank.trainer().gradients(0).grad_norm;
    const std::lock_guard lock(mutex);
    norms.push_back(norm);
  });
  for (double norm : norms) {
    EXPECT_EQ(norm, norms[0]);
    EXPECT_NEAR(norm / std::sqrt(squares), 1, 1e-9);
  }
}

// Five held-out sequences divide among no number of ranks: each takes its turns, the last ones are filled up.
TEST(Ranks, ValidationLossDoesNotDependOnTheLayout) {
  const Overrides overrides = {"data.validation_sequences=5", "moe.capacity_factor=1.0", "model.dropout=0.2"};
  auto losses = [&](const Overrides& more, const std::string& plugins) {
    Overrides all = overrides;
    all.insert(all.end(), more.begin(), more.end());
    const Config config = experiment(all, plugins);
    std::vector<double> found;
    std::mutex mutex;
    run_threads(check_layout(config), [&](Communicator& communicator) {
      TestRank rank(config, communicator);
      const double loss = rank.trainer().validate();
      const std::lock_guard lock(mutex);
      found.push_back(loss);
    });
    return found;
  };
  const double one = losses({}, axes(0)).front();
  for (const std::string& plugins : {axes(0), axes(2), axes(2, 2), axes(4, 2), axes(8, 4)}) {
    for (const Overrides& more : {Overrides{}, Overrides{"batch.micro_batch=1"}}) {
      EXPECT_THAT(losses(more, plugins), testing::Each(testing::DoubleNear(one, 1e-6))) << plugins;
    }
  }
}

// --- ranks without work

// Every token chooses the same experts, so that the ranks of the others get no row, in layers and in gradients.
class OneExpertForAll : public testing::TestWithParam<const char*> {};

struct Gathered {
  StepReport report;
  std::map<std::string, std::vector<float>> gradients;  // whole: these axes split no matrix
};

// The gradients of the first step, from the ranks of a layout, each prepared before it.
Gathered first_step(const Config& config, const BatchSource* source, const std::function<void(TestRank&)>& prepare) {
  Gathered all;
  std::mutex mutex;
  run_threads(check_layout(config), [&](Communicator& communicator) {
    TestRank rank(config, communicator, source);
    prepare(rank);
    const StepReport report = rank.trainer().gradients(0);
    const std::lock_guard lock(mutex);
    all.report = report;
    for (const std::string& name : rank.names()) {
      all.gradients[name] = rank.gradient(name);
    }
  });
  return all;
}

void expect_equal(const Gathered& many, const Gathered& one) {
  EXPECT_NEAR(many.report.loss, one.report.loss, 1e-6);
  EXPECT_NEAR(many.report.aux_loss, one.report.aux_loss, 1e-6);
  EXPECT_EQ(many.report.tokens, one.report.tokens);
  for (std::size_t layer = 0; layer < one.report.layers.size(); ++layer) {
    EXPECT_EQ(many.report.layers[layer].load, one.report.layers[layer].load);
    EXPECT_EQ(many.report.layers[layer].kept, one.report.layers[layer].kept);
  }
  ASSERT_EQ(many.gradients.size(), one.gradients.size());
  for (const auto& [name, gradient] : one.gradients) {
    EXPECT_LE(test::relative_difference(many.gradients.at(name), gradient), 1e-5) << name;
  }
}

Gathered all_on_one_expert(const Config& config) {
  return first_step(config, nullptr, [&](TestRank& rank) {
    const std::size_t router = static_cast<std::size_t>(config.settings.moe.experts * config.settings.model.d_model);
    for (int layer = 0; layer < 2; ++layer) {  // all logits are zero: ties go to the lowest experts
      rank.set_weight(fmt::format("model.layers.{}.block_sparse_moe.gate.weight", layer),
                      std::vector<float>(router, 0.0f));
    }
  });
}

TEST_P(OneExpertForAll, IsLikeOneRank) {
  const Overrides overrides = {R"(moe.router="switch")", "moe.top_k=1", GetParam()};
  const Gathered one = all_on_one_expert(experiment(overrides));
  for (const LayerCounters& layer : one.report.layers) {
    ASSERT_EQ(layer.load[0], 8 * 12);
    ASSERT_EQ(layer.load[1] + layer.load[2] + layer.load[3], 0);
  }
  for (const std::string& plugins : {axes(2, 2), axes(4, 4), axes(4, 2)}) {
    expect_equal(all_on_one_expert(experiment(overrides, plugins)), one);
  }
}

TEST_P(OneExpertForAll, LeavesTheOthersZeroGradients) {
  const Gathered many =
      all_on_one_expert(experiment({R"(moe.router="switch")", "moe.top_k=1", GetParam()}, axes(4, 4)));
  for (int e = 1; e < 4; ++e) {
    const auto& gradient = many.gradients.at(fmt::format("model.layers.0.block_sparse_moe.experts.{}.w2.weight", e));
    EXPECT_THAT(gradient, testing::Each(0.0f));
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, OneExpertForAll,
                         testing::Values("moe.capacity_factor=0.0", "moe.capacity_factor=1.0",
                                         "moe.capacity_factor=100.0"));

// Ranks whose sequences are padding, all of them in the second half of the batch: they have no token of their own, but
// serve the others' with their experts.
TEST(Ranks, WithoutTokensServeTheOthers) {
  HostBatch batch = padding_batch(0, 8, 12);
  const std::vector<std::int32_t> tokens = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8};
  for (std::int64_t row = 0; row < 4; ++row) {
    put_document(batch, row, 0, std::span(tokens).first(static_cast<std::size_t>(12 - row)), 12 - row);
  }
  const test::FixedSource source(batch, 24);
  const auto nothing = [](TestRank&) {};
  for (const char* capacity : {"moe.capacity_factor=0.0", "moe.capacity_factor=1.0"}) {
    const Overrides overrides = {capacity, "moe.aux_loss=0.5"};
    const Gathered one = first_step(experiment(overrides), &source, nothing);
    EXPECT_EQ(one.report.tokens, 12 + 11 + 10 + 9);
    for (const std::string& plugins : {axes(2), axes(2, 2), axes(4, 2), axes(4, 4), axes(8, 4)}) {
      expect_equal(first_step(experiment(overrides, plugins), &source, nothing), one);
    }
  }
}

// --- collectives

// Every member of a group meets the same collectives in the same order, whatever the routing of its tokens.
TEST(Ranks, CallCollectivesInOneOrder) {
  const std::vector<Overrides> cases = {
      {},
      {"batch.micro_batch=1", "moe.capacity_factor=1.0"},
      {"moe.experts=32", "data.sequence_length=2", "moe.top_k=1"},  // most experts and some ranks without tokens
      {"moe.every=2", "model.layers=3"},
  };
  for (const Overrides& overrides : cases) {
    const Config config = experiment(overrides, axes(4, 2));
    CallRecord record;
    run_threads(4, [&](Communicator& communicator) {
      RecordingCommunicator recording(communicator, record);
      TestRank rank(config, recording);
      rank.trainer().step(0);
      rank.trainer().step(1);
      rank.trainer().validate();
    });
    ASSERT_FALSE(record.calls.empty());
    std::size_t collectives = 0;
    for (const auto& [group, by_rank] : record.calls) {
      collectives += by_rank.begin()->second.size();
      for (const auto& [rank, calls] : by_rank) {
        EXPECT_EQ(calls, by_rank.begin()->second) << group << ": rank " << rank;
      }
      EXPECT_EQ(by_rank.size(), record.members.at(group)) << group << ": some member never called";
    }
    EXPECT_GT(collectives, 20u);
  }
}

// --- a forward pass that is not finite

// The step is refused on every rank, with the layer and rank where it began, and no weight moves.
TEST(Ranks, LossThatIsNotFiniteIsNotApplied) {
  const Config config = experiment({}, axes(4, 2));
  std::mutex mutex;
  std::vector<std::string> messages;
  run_threads(4, [&](Communicator& communicator) {
    TestRank rank(config, communicator);
    const std::string poisoned = "model.layers.1.self_attn.o_proj.weight";
    if (communicator.rank() == 2) {
      std::vector<float> weight = rank.weight(poisoned);
      weight[5] = std::numeric_limits<float>::quiet_NaN();
      rank.set_weight(poisoned, weight);
    }
    std::map<std::string, std::vector<float>> before;
    for (const std::string& name : rank.names()) {
      before[name] = rank.weight(name);
    }
    std::string message;
    try {
      rank.trainer().step(0);
    } catch (const Error& error) {
      message = error.what();
    }
    for (const std::string& name : rank.names()) {
      EXPECT_TRUE(same_bits(rank.weight(name), before[name])) << name;
      EXPECT_THAT(rank.state("moment1", name), testing::Each(0.0f)) << name;
    }
    const std::lock_guard lock(mutex);
    messages.push_back(message);
  });
  ASSERT_EQ(messages.size(), 4u);
  for (const std::string& message : messages) {
    EXPECT_THAT(message, testing::HasSubstr("step 1 is not applied"));
    EXPECT_THAT(message, testing::HasSubstr("layer 1 on rank 2"));
  }
}

// --- the guarded device: nothing but operations and groups touches memory

class Guarded : public testing::TestWithParam<std::string> {};

TEST_P(Guarded, PluginsTouchMemoryOnlyThroughOperations) {
  const Overrides overrides = {"moe.capacity_factor=1.0", "batch.micro_batch=1", "moe.shared_experts=1"};
  Config guarded = experiment(overrides, GetParam());
  const Snapshot expected = take_snapshot(guarded, 2);
  guarded.settings.run.device = "guarded";
  expect_same_bits(take_snapshot(guarded, 2), expected);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Guarded,
                         testing::Values(axes(2), axes(2, 2), "[plugins.template]\nfactor = 0.5\n" + axes(2)));

}  // namespace
}  // namespace orthant::ranks_test
