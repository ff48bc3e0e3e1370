// A batch that grows during a run (batch.grow_after, grow_to): in every layout as on one rank, against steps of fixed
// sizes that are made by hand one after another, and within what a plan promises.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "core/dry_run/promise.h"
#include "core/plan/batch_share.h"
#include "parallel/local/thread_world.h"
#include "tests/support/parity.h"
#include "tests/support/paths.h"

namespace orthant::growing_batch_test {
namespace {

using test::ChangedSource;
using test::experiment;
using test::joined;
using test::OneRank;
using test::Overrides;
using test::TestRank;

// Eight sequences; 16 in the second step, and 40 from the third on.
const Overrides growing = {"batch.sequences=8", "batch.grow_after=[1, 2]", "batch.grow_to=[16, 40]"};

struct Layout {
  const char* name;
  std::string plugins;
  Overrides of_model = {}, only_here = {};
};
void PrintTo(const Layout& layout, std::ostream* out) {
  *out << layout.name;
}

std::string zero(int stage, int ranks = 2, const std::string& more = "") {
  return fmt::format("[plugins.data]\nsize = {}\nzero = {}\nwhole_below = 0\n{}", ranks, stage, more);
}
std::string pipeline(int size, const std::string& schedule = "1f1b", int chunks = 1) {
  return fmt::format("[plugins.pipeline]\nsize = {}\nschedule = \"{}\"\nchunks = {}\n", size, schedule, chunks);
}
const std::string expert = "[plugins.expert]\nsize = 2\n",
                  tensor = "[plugins.tensor]\nsize = 2\nsequence_parallel = true\n",
                  offload = "[plugins.offload]\nstates = \"host\"\nweights = \"host\"\nactivations = \"host\"\n";
const Overrides two = {"batch.micro_batch=2"}, one = {"batch.micro_batch=1"};

const Layout layouts[] = {
    {"data", zero(0, 4)},
    {"data_noise", zero(0), {"model.dropout=0.2", "moe.jitter=0.2"}, two},
    {"zero_1", zero(1), {"moe.router=\"bias\"", "moe.aux_loss=0.0"}, two},
    {"zero_2_capacity", zero(2, 4), {"moe.capacity_factor=1.0"}},
    {"zero_3", zero(3, 4), {}, one},
    {"zero_3_layered", zero(3, 2, "layered = true\n"), {}, two},
    {"zero_3_hybrid", zero(3, 4, "shard_ranks = 2\n")},
    {"tensor", tensor, {"moe.shared_experts=1"}, two},
    {"tensor_folded", "[plugins.tensor]\nsize = 2\nexperts = \"fold\"\n"},
    {"sequence_ulysses", "[plugins.sequence]\nsize = 2\n", {}, two},
    {"sequence_ring", "[plugins.sequence]\nsize = 2\nmethod = \"ring\"\n", {}, two},
    {"expert", zero(0, 4) + expert},
    {"expert_padded", zero(1) + "[plugins.expert]\nsize = 2\npadded = true\n", {"moe.capacity_factor=1.5"}, two},
    {"gpipe", pipeline(2, "gpipe"), {"model.tie_embeddings=true"}, two},
    {"one_forward_one_backward", pipeline(4), {"model.layers=4"}, one},
    {"more_stages_than_micro_batches", pipeline(3), {"model.layers=3"}, {"batch.micro_batch=8"}},
    {"interleaved", pipeline(2, "interleaved", 2), {"model.layers=4", "moe.every=2"}, one},
    {"all_axes", pipeline(2) + zero(2) + tensor + expert, {}, two},
    {"recomputed", pipeline(2), {}, joined(one, {"memory.recompute=\"full\"", "memory.keep_micro_batches=1"})},
    {"offload", zero(1) + offload, {}, two},
    {"bf16", zero(2), {"run.dtype=\"bf16\"", "moe.top_k=4"}, two},
};

class GrowingBatch : public testing::TestWithParam<Layout> {};

TEST_P(GrowingBatch, EqualsOneRank) {
  const Layout& layout = GetParam();
  test::expect_parity(joined(growing, layout.of_model), layout.plugins, {.steps = 3, .only_here = layout.only_here});
}

INSTANTIATE_TEST_SUITE_P(Parity, GrowingBatch, testing::ValuesIn(layouts),
                         [](const auto& layout) { return layout.param.name; });

// The row of sequences of a run that does not grow, of which each step takes the next ones.
class CutRow final : public ChangedSource {
 public:
  CutRow(const Config& config, std::vector<std::int64_t> begins)
      : ChangedSource(config.settings), of_a_step_(config.settings.batch.sequences), begins_(std::move(begins)) {}
  HostBatch train(std::int64_t step, std::int64_t first, std::int64_t count) const override {
    HostBatch batch;
    for (std::int64_t g = first; g < first + count; ++g) {
      const std::int64_t number = begins_.at(static_cast<std::size_t>(step)) + g;
      const HostBatch row = ChangedSource::train(number / of_a_step_, number % of_a_step_, 1);
      const auto add = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
      batch.positions = row.positions;
      ++batch.sequences;
      add(batch.token, row.token);
      add(batch.label, row.label);
      add(batch.position, row.position);
      add(batch.first, row.first);
      add(batch.valid, row.valid);
      for (std::int64_t p = 0; p < row.positions; ++p) {
        batch.index.push_back(g * row.positions + p);
      }
    }
    return batch;
  }

 private:
  std::int64_t of_a_step_;
  std::vector<std::int64_t> begins_;
};

std::map<std::string, std::vector<float>> weights_of(OneRank& rank) {
  std::map<std::string, std::vector<float>> weights;
  for (const std::string& name : rank->names()) {
    weights[name] = rank->weight(name);
  }
  return weights;
}

// Each step is a run of its own here, with a batch of one size and the weights of the run before: plain SGD has no
// other state.
TEST(GrowingBatches, AreStepsOfFixedSizesOneAfterAnother) {
  const Overrides alike = {"optimizer.name=\"sgd\"", "optimizer.momentum=0.0", "batch.micro_batch=4",
                           "model.dropout=0.1",      "moe.jitter=0.1",         "moe.capacity_factor=1.0"};
  OneRank grown(experiment(joined(alike, growing)));
  const CutRow row(experiment(alike), {0, 8, 24, 64});
  const std::int64_t sizes[] = {8, 16, 40, 40};
  std::map<std::string, std::vector<float>> weights = weights_of(grown);
  std::int64_t last = 0;
  for (std::int64_t step = 0; step < 4; ++step) {
    SCOPED_TRACE(step);
    const std::int64_t size = sizes[step];
    OneRank fixed(experiment(joined(alike, {fmt::format("batch.sequences={}", size)})), &row);
    for (const auto& [name, values] : weights) {
      fixed->set_weight(name, values);
    }
    const StepReport expected = fixed->trainer().step(step), found = grown->trainer().step(step);
    EXPECT_EQ(found.tokens, size * 12);
    EXPECT_EQ(found.loss, expected.loss);
    EXPECT_EQ(found.aux_loss, expected.aux_loss);
    EXPECT_EQ(found.grad_norm, expected.grad_norm);
    weights = weights_of(fixed);
    test::expect_same_bits(weights_of(grown), weights);
    last = size;
  }
  EXPECT_EQ(last, 40);
}

// What a rank loads of each step, over all ranks, is the row of sequences of a run that does not grow: none is left out
// and none comes twice.
TEST(GrowingBatches, EveryLayoutReadsTheSameRow) {
  for (const std::string& plugins : {std::string(), zero(0, 4), pipeline(2) + zero(1)}) {
    SCOPED_TRACE(plugins);
    const Config config = experiment(joined(growing, two), plugins);
    const std::unique_ptr<BatchSource> source = make_batch_source(config.settings);
    const CutRow row(experiment({"batch.sequences=8"}), {0, 8, 24, 64, 104});
    Session session(config);
    std::vector<std::int64_t> loaded(5);
    for (int rank = 0; rank < session.world_size(); ++rank) {
      Session there(config);
      there.plan(rank, nullptr, nullptr);
      const bool counts = there.plan().stage() == 0;
      const std::vector<BatchShare> shares = batch_shares(there.plan());
      ASSERT_EQ(shares.size(), 3u);
      for (std::int64_t step = 0; step < 5; ++step) {
        const BatchShare& share = shares.at(times_grown(config.settings.batch, step));
        EXPECT_EQ(share.micro_batch, 2);
        EXPECT_EQ(share.micro_batches * share.micro_batch, share.sequences);
        const HostBatch found = source->train(step, share.first, share.sequences);
        const HostBatch expected = row.train(step, share.first, share.sequences);
        EXPECT_EQ(found.token, expected.token);
        EXPECT_EQ(found.label, expected.label);
        EXPECT_EQ(found.index, expected.index);
        loaded[static_cast<std::size_t>(step)] += counts ? share.sequences : 0;
      }
    }
    EXPECT_THAT(loaded, testing::ElementsAre(8, 16, 40, 40, 40));
  }
}

// verify takes the growth into its few steps, to the last sizes.
TEST(GrowingBatches, AreVerifiedWithinTheSteps) {
  const BatchSettings batch{.sequences = 4, .micro_batch = 0, .grow_after = {100, 200, 300}, .grow_to = {8, 12, 16}};
  BatchSettings found = growth_within(batch, 3);
  EXPECT_THAT(found.grow_after, testing::ElementsAre(1, 2));
  EXPECT_THAT(found.grow_to, testing::ElementsAre(12, 16));
  EXPECT_EQ(found.sequences, 4);
  EXPECT_THAT(growth_within(batch, 1).grow_to, testing::IsEmpty());
  EXPECT_THAT(growth_within(batch, 9).grow_after, testing::ElementsAre(1, 2, 3));
  const Config config = experiment({"batch.sequences=8", "batch.grow_after=[100]", "batch.grow_to=[24]"}, zero(1));
  const VerifyReport report = verify(config, 2);
  EXPECT_TRUE(report.ok()) << test::differences(report);
}

// Of the rank that held most, in steps of every size.
std::int64_t measured_peak(const Config& config) {
  std::mutex mutex;
  std::int64_t most = 0;
  run_threads(check_layout(config), [&](Communicator& communicator) {
    TestRank rank(config, communicator);
    for (std::int64_t step = 0; step < 4; ++step) {
      rank.trainer().step(step);
    }
    const std::lock_guard lock(mutex);
    most = std::max(most, rank.stream().device().memory().peak_bytes);
  });
  return most;
}

// A pipeline has more in flight in the steps of the largest batch, and these are what is promised.
TEST(GrowingBatches, StayWithinThePromiseOfTheLargest) {
  const Overrides model = {"model.layers=4", "moe.experts=0", "batch.micro_batch=2", "data.sequence_length=32"};
  const Config first = experiment(joined(model, {"batch.sequences=4"}), pipeline(2, "gpipe")),
               largest = experiment(joined(model, {"batch.sequences=24"}), pipeline(2, "gpipe"));
  const Config config = experiment(
      joined(model, {"batch.sequences=4", "batch.grow_after=[1, 2]", "batch.grow_to=[8, 24]"}), pipeline(2, "gpipe"));
  const std::int64_t promised = memory_need(config).worst, measured = measured_peak(config);
  EXPECT_EQ(promised, memory_need(largest).worst);
  EXPECT_GT(promised, memory_need(first).worst);
  EXPECT_LE(measured, promised);
  EXPECT_GE(static_cast<double>(measured), 0.85 * static_cast<double>(promised));
}

// The micro-batch stays, and so does what one rank needs.
TEST(GrowingBatches, NeedNoMoreOnOneRank) {
  EXPECT_EQ(memory_need(experiment(growing)).worst, memory_need(experiment({"batch.sequences=8"})).worst);
  EXPECT_LE(measured_peak(experiment(growing)), memory_need(experiment(growing)).worst);
}

}  // namespace
}  // namespace orthant::growing_batch_test
