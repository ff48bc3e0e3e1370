// Ranks that are alike are planned once, and micro-batches that repeat are counted: against every rank walked through
// with every micro-batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "core/dry_run/planning.h"
#include "tests/support/experiment.h"

namespace orthant {
namespace {

using test::axes;
using test::experiment;
using test::joined;
using test::Overrides;

std::string pipeline(int stages, const char* schedule = "1f1b", int chunks = 1) {
  return fmt::format("[plugins.pipeline]\nsize = {}\nschedule = \"{}\"\nchunks = {}\n", stages, schedule, chunks);
}
std::string zero(int stage, int size, const char* keys = "") {
  return fmt::format("[plugins.data]\nsize = {}\nzero = {}\n{}", size, stage, keys);
}
const std::string tensor = "[plugins.tensor]\nsize = 2\nexperts = \"fold\"\n",
                  ring = "[plugins.sequence]\nsize = 2\nmethod = \"ring\"\n", offload = "[plugins.offload]\n";

Overrides many(int sequences, const Overrides& more = {}) {
  return joined({"batch.micro_batch=1", fmt::format("batch.sequences={}", sequences)}, more);
}

struct Case {
  const char* name;
  Overrides overrides;
  std::string plugins;
  bool shortened = true;  // not all micro-batches are walked
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.name;
}

// Calls, least and most bytes of one, and bytes sent, by group, operation and type.
std::map<std::tuple<std::size_t, std::string, DType>, std::array<std::int64_t, 4>> sums_of(const CollectiveRecord& r) {
  std::map<std::tuple<std::size_t, std::string, DType>, std::array<std::int64_t, 4>> sums;
  for (const CollectiveCall& call : r.calls) {
    const std::int64_t bytes = std::max(call.bytes_in, call.bytes_out);
    const auto [found, fresh] = sums.try_emplace({call.group, call.operation, call.dtype});
    auto& [count, least, most, sent] = found->second;
    least = fresh ? bytes : std::min(least, bytes);
    most = std::max(most, bytes);
    count += call.times;
    sent += call.times * call.bytes_sent;
  }
  return sums;
}

class Repeated : public testing::TestWithParam<Case> {};

TEST_P(Repeated, NumbersAreThoseOfEveryRankWithEveryMicroBatch) {
  const Config config = experiment(GetParam().overrides, GetParam().plugins);
  std::size_t ranks = 0;
  for (const RankClass& c : plan_classes(config)) {
    ranks += c.ranks.size();
    for (const int rank : c.ranks) {
      const RankPlan whole = plan_whole_step(config, rank);
      EXPECT_EQ(c.memory, whole.memory) << "rank " << rank;
      EXPECT_EQ(c.sent, bytes_sent(whole.step)) << "rank " << rank;
      EXPECT_EQ(c.recomputed.flops, whole.recomputed.flops) << "rank " << rank;
      EXPECT_EQ(c.worst.peak_kinds, plan_whole_step(config, rank, 0, {Load::worst}).memory.peak_kinds) << rank;
    }
  }
  EXPECT_EQ(ranks, plan_mesh(config).world_size);
  PlanEffort effort;
  const RankPlan plan = plan_rank(config, 0, 0, {}, &effort), whole = plan_whole_step(config, 0);
  EXPECT_EQ(sums_of(plan.step), sums_of(whole.step));
  EXPECT_EQ(plan.step.calls.size() < whole.step.calls.size() || effort.micro_batches < 24, GetParam().shortened);
}

const Case cases[] = {
    {"one_rank", many(32), ""},
    {"data_expert", many(64), axes(2, 2)},
    {"zero3_bf16", many(64, {R"(run.dtype="bf16")"}), zero(3, 2) + axes(0, 2)},
    {"pipeline4_uneven_layers", many(64, {"model.layers=5"}), pipeline(4) + axes(2, 2)},
    {"pipeline_keeps_some", many(64, {"model.layers=7", R"(memory.recompute="full")", "memory.keep_micro_batches=2"}),
     pipeline(4) + zero(1, 2)},
    {"pipeline_keeps_one", many(26, {"model.layers=3", R"(memory.recompute="full")", "memory.keep_micro_batches=1"}),
     pipeline(3)},
    {"interleaved", many(64, {"model.layers=8"}), pipeline(2, "interleaved", 2) + zero(2, 2)},
    {"gpipe_keeps_all", many(32), pipeline(2, "gpipe"), false},
    {"offload", many(64), axes(2, 2) + offload},
    {"ragged_experts", many(40, {"moe.experts=6", "moe.top_k=1", "data.sequence_length=14"}), axes(4, 2)},
    {"tied_pipeline_tensor", many(32, {"model.tie_embeddings=true", "model.layers=6"}),
     pipeline(4) + zero(1, 2) + tensor},
    {"five_axes", many(48, {"data.sequence_length=16"}), pipeline(2) + zero(1, 2) + ring + tensor + axes(0, 4)},
    {"muon_sharded", many(64, {R"(optimizer.name="muon")"}), zero(2, 4)},
    {"checkpoints_beside", many(64, {"run.checkpoint_every=2", "run.checkpoint_async=true"}), zero(1, 4)},
    {"shards_and_replicas", many(64), zero(2, 4, "shard_ranks = 2\n")},
    {"multi_token_prediction", many(32, {"model.mtp_depth=1", "model.layers=4"}), pipeline(2) + axes(2, 2)},
};

INSTANTIATE_TEST_SUITE_P(Layouts, Repeated, testing::ValuesIn(cases),
                         [](const auto& c) { return std::string(c.param.name); });

TEST(Repetition, RanksThatAreAlikeAndMicroBatchesThatRepeatAreNotWalked) {
  const auto effort_of = [](int data, int micro_batches) {
    PlanEffort effort;
    plan_classes(experiment(many(data * micro_batches, {"model.layers=6"}), pipeline(4) + axes(data, 2)), 0, 0,
                 &effort);
    return effort;
  };
  const PlanEffort small = effort_of(2, 32), wide = effort_of(256, 32), long_one = effort_of(2, 4096);
  EXPECT_EQ(small.ranks, 16) << "of each stage the first and the last, by two routings";
  EXPECT_EQ(wide.ranks, small.ranks);
  EXPECT_EQ(wide.micro_batches, small.micro_batches);
  EXPECT_EQ(long_one.micro_batches, small.micro_batches);
}

}  // namespace
}  // namespace orthant
