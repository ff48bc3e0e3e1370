// The promise of memory.limit: an upper bound that no routing exceeds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "apps/plan/recorded_routing.h"
#include "core/dry_run/promise.h"
#include "parallel/local/thread_world.h"
#include "tests/plan/memory_refusal.h"
#include "tests/support/experiment.h"
#include "tests/support/paths.h"

namespace orthant::plan_test::promise_test {
namespace {

using test::axes;
using test::experiment;
using test::joined;
using test::Overrides;
using test::TestRank;

struct Case {
  const char* name;
  Overrides overrides;
  std::string plugins;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.name;
}

// All logits are zero, and ties go to the lowest experts: every token of every rank goes to those of the first ranks.
void send_all_to_the_first_experts(TestRank& rank) {
  for (const auto& group : rank.trainer().parameters().groups()) {
    for (const Param& p : group->params) {
      if (p.spec.name.ends_with("gate.weight")) {
        const std::int64_t begin = std::max(p.begin, group->owned_begin) - group->owned_begin;
        const std::int64_t end = std::min(p.begin + p.elements() - group->owned_begin, group->owned_elements);
        if (begin < end) {
          rank.stream().fill(group->master.slice(begin, {end - begin}), 0);
          rank.stream().fill(group->owned_weight.slice(begin, {end - begin}), 0);
        }
        if (group->whole_weight) {
          rank.stream().fill(group->weight.slice(p.begin, {p.elements()}), 0);
        }
      }
    }
  }
}

class WorstRouting : public testing::TestWithParam<Case> {};

// Under a limit that is exactly what was promised.
TEST_P(WorstRouting, StaysBelowThePromise) {
  // Nothing is learned, so that the second step's routing is the first's.
  const Config config =
      experiment(joined({"optimizer.lr=1e-30", "run.validate_every=1"}, GetParam().overrides), GetParam().plugins);
  const Need need = memory_need(config);
  EXPECT_GE(need.worst, need.balanced);
  EXPECT_EQ(need.kinds.total(), need.worst);
  std::mutex mutex;
  std::int64_t most = 0;
  run_threads(check_layout(config), [&](Communicator& communicator) {
    TestRank rank(config, communicator);
    Device& device = rank.stream().device();
    send_all_to_the_first_experts(rank);
    device.limit_memory(need.worst);
    rank.trainer().step(0);
    rank.trainer().step(1);
    rank.trainer().validate();
    const std::lock_guard lock(mutex);
    most = std::max(most, device.memory().peak_bytes);
  });
  EXPECT_LE(most, need.worst);
  EXPECT_GE(static_cast<double>(most), 0.6 * static_cast<double>(need.worst)) << "the promise is far too cautious";
  RecordProperty("promised", std::to_string(need.worst));
  RecordProperty("measured", std::to_string(most));
}

std::string zero(int stage) {
  return fmt::format("[plugins.data]\nsize = 4\nzero = {}\n[plugins.expert]\nsize = 2\n", stage);
}
std::string tensor(int size, const char* keys = "") {
  return fmt::format("[plugins.tensor]\nsize = {}\n{}", size, keys);
}
std::string expert(int size, const char* keys) {
  return axes(size) + fmt::format("[plugins.expert]\nsize = {}\n{}", size, keys);
}

const std::string stages = "[plugins.pipeline]\nsize = 2\nschedule = \"1f1b\"\n";

// Two validation sets, one of them shorter than a pass of all ranks.
Overrides with_sets(const Overrides& more = {}) {
  const std::string text = paths::source("README.md"), few = paths::source("tests/config/bad/parts/corpus.txt");
  return joined({"data.source=\"text\"", "model.vocab_size=256", "data.path=" + text, "data.validation_sequences=20",
                 fmt::format("data.validation_path=[\"{}\", \"{}\"]", text, few)},
                more);
}

const Case cases[] = {
    {"dense", {"moe.experts=0"}, axes(2)},
    {"one_rank", {}, ""},
    {"one_rank_capacity", {"moe.capacity_factor=0.5"}, ""},
    {"expert2", {"moe.top_k=1"}, axes(4, 2)},
    {"expert4", {}, axes(4, 4)},
    {"expert2_capacity", {"moe.capacity_factor=1.25"}, axes(4, 2)},
    {"expert4_capacity_micro_batches", {"moe.capacity_factor=2.0", "batch.micro_batch=1"}, axes(4, 4)},
    {"expert2_chunks", {"moe.top_k=1"}, expert(2, "chunks = 2\n")},
    {"expert4_hierarchical", {}, expert(4, "dispatch = \"hierarchical\"\nnode_ranks = 2\n")},
    {"expert4_padded", {"moe.capacity_factor=1.25"}, expert(4, "padded = true\n")},
    {"expert_choice", {R"(moe.router="expert_choice")", "moe.top_k=0", "moe.capacity_factor=1.5"}, axes(4, 2)},
    {"gshard", {R"(moe.router="gshard")", "moe.capacity_factor=1.25"}, axes(4, 4)},
    {"tensor2_expert2", {}, axes(2, 2) + tensor(2)},
    {"tensor2_expert2_cut_rows", {"data.sequence_length=48"}, axes(2, 2) + tensor(2, "sequence_parallel = true\n")},
    {"tensor2_folded_capacity",
     {"data.sequence_length=48", "moe.capacity_factor=1.25"},
     tensor(2, "experts = \"fold\"\nsequence_parallel = true\n") + axes(0, 2)},
    {"ulysses_expert4_capacity",
     {"data.sequence_length=48", "moe.capacity_factor=1.5"},
     axes(2) + "[plugins.sequence]\nsize = 2\n" + axes(0, 4)},
    {"ring_expert2", {"data.sequence_length=48"}, "[plugins.sequence]\nsize = 4\nmethod = \"ring\"\n" + axes(0, 2)},
    {"zero1", {}, zero(1)},
    {"zero2_micro_batches", {"batch.micro_batch=1"}, zero(2)},
    {"zero3", {}, zero(3)},
    {"zero3_bf16_recompute", {R"(run.dtype="bf16")", R"(memory.recompute="full")"}, zero(3)},
    {"in_backward", {"optimizer.clip_grad_norm=0", "optimizer.in_backward=true"}, axes(4, 2)},
    {"in_backward_zero2", {"optimizer.clip_grad_norm=0", "optimizer.in_backward=true", "batch.micro_batch=1"}, zero(2)},
    {"recompute_full", {R"(memory.recompute="full")"}, axes(4, 4)},
    {"recompute_selective", {R"(memory.recompute="selective")", "moe.shared_experts=1"}, axes(2, 2)},
    {"latent_shared_gate",
     {R"(model.attention="latent")", "model.q_lora_rank=6", "model.kv_lora_rank=5", "model.qk_nope_head_dim=4",
      "model.qk_rope_head_dim=2", "model.v_head_dim=3", "moe.first_dense=1", "moe.shared_experts=1",
      "moe.shared_gate=true"},
     axes(2, 2) + tensor(2, "sequence_parallel = true\n")},
    {"validation_sets", with_sets(), ""},
    {"validation_sets_zero3", with_sets({"batch.micro_batch=1"}), zero(3)},
    {"validation_sets_pipeline_expert", with_sets({"batch.micro_batch=1"}), stages + axes(2, 2)},
    {"pipeline_expert", {"batch.micro_batch=1"}, stages + axes(2, 2)},
    {"mtp_zero3", {"model.mtp_depth=2", "batch.micro_batch=1"}, zero(3)},
    {"mtp_tensor_recompute_full",
     {"model.mtp_depth=1", R"(memory.recompute="full")", "data.sequence_length=48"},
     axes(2, 2) + tensor(2, "sequence_parallel = true\n")},
    {"mtp_pipeline_expert", {"model.mtp_depth=1", "batch.micro_batch=1"}, stages + axes(2, 2)},
    {"pipeline_expert_keeps",
     {"batch.micro_batch=1", "model.layers=4", R"(memory.recompute="full")", "memory.keep_micro_batches=1"},
     stages + axes(2, 2)},
};

INSTANTIATE_TEST_SUITE_P(Layouts, WorstRouting, testing::ValuesIn(cases),
                         [](const auto& c) { return std::string(c.param.name); });

// --- a routing that was recorded

class Recorded : public testing::Test {
 protected:
  void SetUp() override {
    file_ = std::filesystem::temp_directory_path() / fmt::format("orthant_recorded_{}.jsonl", getpid());
    std::ofstream(file_) << R"({"step":1,"expert_tokens":{"0":[25,25,25,25],"1":[10,30,30,30]}})"
                         << "\n"
                         << R"({"step":2,"expert_tokens":{"0":[40,40,10,10],"1":[30,10,30,30]}})"
                         << "\n"
                         << R"({"step":3,"expert_to)";
  }
  void TearDown() override { std::filesystem::remove(file_); }
  std::filesystem::path file_;
};

TEST_F(Recorded, TheShareIsThatOfTheBusiestRankOfAllSteps) {
  EXPECT_DOUBLE_EQ(recorded_share(file_, 4, 2), 0.8);
  EXPECT_DOUBLE_EQ(recorded_share(file_, 4, 4), 0.4);
  EXPECT_DOUBLE_EQ(recorded_share(file_, 4, 1), 1.0);
  EXPECT_THROW(recorded_share(file_, 8, 2), ConfigError);
  EXPECT_THROW(recorded_share("/nowhere/metrics.jsonl", 4, 2), ConfigError);
}

TEST_F(Recorded, APlanWithItIsBetweenBalancedAndWorst) {
  const Config config = experiment({"data.sequence_length=48"}, axes(4, 2));
  ASSERT_EQ(expert_ranks(config), 2);
  const auto peak = [&](double share) { return plan_classes(config, 0, share).at(0).recorded->peak; };
  const RankClass plain = plan_classes(config).at(0);
  EXPECT_FALSE(plain.recorded);
  EXPECT_EQ(peak(0.5), plain.memory.peak);
  EXPECT_LT(plain.memory.peak, peak(0.8));
  EXPECT_LT(peak(0.8), peak(0.9));
  EXPECT_EQ(peak(1.0), plain.worst.peak);
}

// --- the host's memory

TEST(HostLimit, HoldsTensorsOfPlugins) {
  const std::string offload = "[plugins.offload]\nstates = \"host\"\nactivations = \"host\"\n";
  const auto host_limit = [](std::int64_t bytes) { return Overrides{fmt::format("memory.host_limit={}", bytes)}; };
  const Need need = memory_need(experiment({}, axes(2) + offload));
  ASSERT_GT(need.host, 0);
  EXPECT_EQ(memory_need(experiment({}, axes(2))).host, 0);
  const Config config = experiment(host_limit(need.host), axes(2) + offload);
  EXPECT_EQ(refusal_of(config), "");
  EXPECT_THAT(refusal_of(experiment(host_limit(need.host - 1), axes(2) + offload)),
              testing::AllOf(testing::HasSubstr("--set:1:19: [memory] host_limit: this run may need"),
                             testing::HasSubstr("rank 0 and the 1 like it")));
  std::mutex mutex;
  std::int64_t most = 0;
  run_threads(2, [&](Communicator& communicator) {
    TestRank rank(config, communicator);
    Device& device = rank.stream().device();
    device.limit_host_memory(need.host);
    rank.trainer().step(0);
    rank.trainer().step(1);
    const std::lock_guard lock(mutex);
    most = std::max(most, device.host_memory().peak_bytes);
  });
  EXPECT_LE(most, need.host);
  EXPECT_GE(static_cast<double>(most), 0.8 * static_cast<double>(need.host)) << "the promise is far too cautious";
}

}  // namespace
}  // namespace orthant::plan_test::promise_test
