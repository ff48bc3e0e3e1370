// The promise of memory.limit: an upper bound that no routing exceeds, refusals whose advice holds, and "fit".
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <sstream>

#include "core/dry_run/promise.h"
#include "core/run/recorded_routing.h"
#include "parallel/local/thread_world.h"
#include "tests/support/experiment.h"

namespace orthant::promise_test {
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
    {"pipeline_expert", {"batch.micro_batch=1"}, stages + axes(2, 2)},
    {"pipeline_expert_keeps",
     {"batch.micro_batch=1", "model.layers=4", R"(memory.recompute="full")", "memory.keep_micro_batches=1"},
     stages + axes(2, 2)},
};

INSTANTIATE_TEST_SUITE_P(Layouts, WorstRouting, testing::ValuesIn(cases),
                         [](const auto& c) { return std::string(c.param.name); });

// --- refusals

std::string refusal_of(Config config) {
  try {
    promise_memory(config);
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_configuration);
    return error.what();
  }
  return "";
}

// "memory.recompute = "full"  12 MiB; ..." -> memory.recompute = "full", of each change that is named.
std::vector<std::string> changes_in(const std::string& text) {
  std::vector<std::string> changes;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("        ")) {
      const std::size_t begin = line.find_first_not_of(' ');
      changes.push_back(line.substr(begin, line.find("  ", begin) - begin));
    }
  }
  return changes;
}

std::string limit(std::int64_t bytes) {
  return fmt::format("memory.limit={}", bytes);
}

struct Refused {
  std::string text;
  std::vector<std::string> changes;
};

// Every change that a refusal names is tried: it is accepted.
Refused refused(const Overrides& overrides, const std::string& plugins, std::int64_t bytes) {
  Refused found;
  found.text = refusal_of(experiment(joined(overrides, {limit(bytes)}), plugins));
  found.changes = changes_in(found.text);
  for (const std::string& change : found.changes) {
    Overrides with = joined(overrides, {limit(bytes)});
    for (std::size_t at = 0; at != std::string::npos;) {
      const std::size_t end = change.find(" and ", at);
      with.push_back(change.substr(at, end == std::string::npos ? end : end - at));
      at = end == std::string::npos ? end : end + 5;
    }
    EXPECT_EQ(refusal_of(experiment(with, plugins)), "") << change;
  }
  return found;
}

TEST(MemoryLimit, WhatFitsIsAccepted) {
  const Overrides overrides = {"moe.top_k=1"};
  const Need need = memory_need(experiment(overrides, axes(4, 4)));
  EXPECT_EQ(refusal_of(experiment(joined(overrides, {limit(need.worst)}), axes(4, 4))), "");
  EXPECT_THAT(refusal_of(experiment(joined(overrides, {limit(need.worst - 1)}), axes(4, 4))),
              testing::HasSubstr("memory.limit="));
}

TEST(MemoryLimit, TellsTheNeedByKindsAndThreeChangesThatFit) {
  const Overrides overrides = {"data.sequence_length=96", "model.layers=4"};
  const Need need = memory_need(experiment(overrides, axes(2)));
  const Refused found = refused(overrides, axes(2), need.worst - need.worst / 40);
  EXPECT_THAT(found.text, testing::HasSubstr("this run may need"));
  EXPECT_THAT(found.text, testing::ContainsRegex("would hold weights .*, gradients .*, states .*, activations "));
  EXPECT_THAT(found.text, testing::Not(testing::HasSubstr("only the worst routing"))) << "one rank has all experts";
  EXPECT_EQ(found.changes.size(), 3u) << found.text;
  EXPECT_THAT(found.changes, testing::Contains("memory.recompute = \"full\""));
  EXPECT_THAT(found.changes, testing::Contains("batch.micro_batch = 2"));
  EXPECT_THAT(found.changes, testing::Contains("plugins.data.zero = 1"));
}

TEST(MemoryLimit, WhereOnlyTheWorstRoutingDoesNotFitACapacityIsNamedFirst) {
  const Overrides overrides = {"moe.top_k=1", "data.sequence_length=96"};
  const Need need = memory_need(experiment(overrides, axes(4, 4)));
  const Refused found = refused(overrides, axes(4, 4), (need.worst + need.balanced) / 2);
  EXPECT_THAT(found.text, testing::HasSubstr("only the worst routing"));
  ASSERT_FALSE(found.changes.empty());
  EXPECT_THAT(found.changes.front(), testing::StartsWith("moe.capacity_factor = ")) << found.text;
}

TEST(MemoryLimit, NamesThePluginsOwnChanges) {
  const Overrides overrides = {"model.d_ff=256", "moe.experts=0"};
  const Need need = memory_need(experiment(overrides, axes(4)));
  EXPECT_THAT(refused(overrides, axes(4), need.worst - need.worst / 6).changes,
              testing::Contains("plugins.data.zero = 1"));
}

TEST(MemoryLimit, NamesUpdatesInTheBackwardPassWhereNothingIsClipped) {
  const char* const named = "optimizer.in_backward = true";
  for (const bool clips : {false, true}) {
    const Overrides overrides = {"model.d_ff=256", "moe.experts=0", "model.layers=6",
                                 fmt::format("optimizer.clip_grad_norm={}", clips ? 1 : 0)};
    const Need need = memory_need(experiment(overrides, axes(2)));
    const Refused found = refused(overrides, axes(2), need.worst - need.worst / 10);
    EXPECT_EQ(testing::Value(found.changes, testing::Contains(named)), !clips) << found.text;
  }
}

TEST(MemoryLimit, WhatNothingReachesIsSaid) {
  EXPECT_THAT(refusal_of(experiment({limit(1000)}, axes(2))), testing::HasSubstr("No change was found that fits"));
}

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

// --- recompute = "fit"

TEST(Fit, IsTheCheapestThatKeepsTheLimit) {
  const Overrides overrides = {"moe.every=2", "model.layers=4", "model.d_ff=64", "data.sequence_length=48"};
  std::int64_t before = std::int64_t{1} << 60;
  for (const char* choice : {"none", "selective", "full"}) {
    const Overrides with = joined(overrides, {fmt::format(R"(memory.recompute="{}")", choice)});
    const std::int64_t bytes = memory_need(experiment(with, axes(2, 2))).worst;
    ASSERT_LT(bytes, before) << choice << " saves nothing here";
    for (const std::int64_t enough : {bytes, before - 1}) {
      Config config = experiment(joined(overrides, {R"(memory.recompute="fit")", limit(enough)}), axes(2, 2));
      EXPECT_THAT(promise_memory(config), testing::HasSubstr(fmt::format("\"fit\" is \"{}\"", choice)));
      EXPECT_EQ(config.settings.memory.recompute, choice);
      EXPECT_EQ(config.table("memory").text("recompute"), "fit") << "what was written stays";
    }
    before = bytes;
  }
  const std::string text =
      refusal_of(experiment(joined(overrides, {R"(memory.recompute="fit")", limit(before - 1)}), axes(2, 2)));
  EXPECT_THAT(text, testing::HasSubstr("this run may need"));
}

// Beside every choice that there is, with its price in operations.
TEST(Fit, KeepsAsManyMicroBatchesOfAPipelineAsFit) {
  const Overrides overrides = {"model.layers=12", "moe.every=2", "model.d_ff=64", "data.sequence_length=48",
                               "batch.micro_batch=1"};
  const std::string plugins = "[plugins.pipeline]\nsize = 4\n" + axes(2, 2);
  const auto with = [&](const char* recompute, int keep) {
    Config config = experiment(overrides, plugins);
    config.settings.memory.recompute = recompute;
    config.settings.memory.keep_micro_batches = keep;
    return memory_need(config);
  };
  struct Choice {
    std::string recompute;
    int keep;
    Need need;
    double price;
  };
  const Need none = with("none", 0);
  std::vector<Choice> choices = {{"none", 0, none, 0}};
  std::set<std::int64_t> limits = {none.worst};
  for (const char* recompute : {"selective", "full"}) {
    for (int keep = 0; keep < 4; ++keep) {
      const Need need = with(recompute, keep);
      choices.push_back({recompute, keep, need, need.recomputed + 5000 * static_cast<double>(need.sent - none.sent)});
      limits.insert(need.worst);
    }
    EXPECT_EQ(with(recompute, 4).worst, none.worst) << "four are in flight on the first stage, and all keep";
    EXPECT_EQ(with(recompute, 4).recomputed, 0);
  }
  ASSERT_GE(limits.size(), 6u) << "choices that hold equally much";
  std::set<std::string> chosen;
  for (const std::int64_t bytes : limits) {
    const Choice* cheapest = nullptr;
    for (const Choice& choice : choices) {
      if (choice.need.worst <= bytes && (cheapest == nullptr || choice.price < cheapest->price)) {
        cheapest = &choice;
      }
    }
    Config config = experiment(joined(overrides, {R"(memory.recompute="fit")", limit(bytes)}), plugins);
    const std::string note = promise_memory(config);
    EXPECT_EQ(config.settings.memory.recompute, cheapest->recompute) << note;
    EXPECT_EQ(config.settings.memory.keep_micro_batches, cheapest->keep) << note;
    chosen.insert(fmt::format("{} {}", cheapest->recompute, cheapest->keep));
  }
  EXPECT_GE(chosen.size(), 4u) << "the limits tell no choices apart";
}

TEST(Fit, ARefusalNamesHowManyMicroBatchesMayKeep) {
  const Overrides overrides = {"model.layers=8", "moe.experts=0", "data.sequence_length=48", "batch.micro_batch=1"};
  const std::string plugins = "[plugins.pipeline]\nsize = 4\n";
  const Need need = memory_need(experiment(overrides, plugins));
  const Refused found = refused(overrides, plugins, need.worst - 1);
  EXPECT_THAT(found.text, testing::HasSubstr("memory.recompute = \"full\" and memory.keep_micro_batches = "));
  const Overrides kept = joined(overrides, {R"(memory.recompute="full")", "memory.keep_micro_batches=3"});
  const Need less = memory_need(experiment(kept, plugins));
  EXPECT_THAT(refused(kept, plugins, less.worst - 1).changes, testing::Contains("memory.keep_micro_batches = 2"));
}

// One forward of each block again for each micro-batch that does not keep: every other one of the first stage's eight.
TEST(Fit, CountsWhatIsComputedAgain) {
  const Overrides overrides = {"model.layers=4", "moe.experts=0", "batch.micro_batch=1", R"(memory.recompute="full")"};
  const auto classes = [&](int keep) {
    return plan_classes(experiment(joined(overrides, {fmt::format("memory.keep_micro_batches={}", keep)}), stages));
  };
  const std::vector<RankClass> all = classes(0), half = classes(1);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].recomputed.pairs, 8);
  EXPECT_EQ(all[0].recomputed.kept, 0);
  EXPECT_EQ(half[0].recomputed.kept, 4);
  EXPECT_EQ(half[1].recomputed.kept, 8) << "the last stage has one in flight";
  EXPECT_DOUBLE_EQ(half[0].recomputed.flops, all[0].recomputed.flops / 2);
  EXPECT_EQ(half[1].recomputed.flops, 0);
  EXPECT_EQ(classes(2)[0].recomputed.flops, 0);
  // For each of 96 tokens and four blocks of d = f = 16: queries, keys, values and the output 8 d^2, scores and sums
  // over half of 12 tokens 4 d each, three matrices of the FFN 6 d f, what memory bounds 80 d.
  const double d = 16, f = 16, block = 8 * d * d + 4 * d * 6 + 6 * d * f + 80 * d;
  EXPECT_DOUBLE_EQ(all[0].recomputed.flops + all[1].recomputed.flops, 96 * 4 * block);
}

TEST(Fit, NeedsALimit) {
  EXPECT_THAT(test::refusal({R"(memory.recompute="fit")"}, ""), testing::HasSubstr("needs a limit"));
}

}  // namespace
}  // namespace orthant::promise_test
