// What a plan predicts, against the same layouts run for real: ranks as threads on the CPU device, its counters of
// bytes, and their collectives written down. Routing is made exact: every token goes to every expert, or capacity is so
// small that every expert is full.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "apps/check/recording_communicator.h"
#include "core/dry_run/planning.h"
#include "parallel/local/thread_world.h"
#include "tests/support/experiment.h"
#include "tests/support/paths.h"

namespace orthant::planning_test {
namespace {

using test::axes;
using test::experiment;
using test::joined;
using test::Overrides;

struct Case {
  const char* name;
  Overrides overrides;
  std::string plugins;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.name;
}

std::int64_t bytes_of(const Tensor& t) {
  return static_cast<std::int64_t>(t.bytes());
}

// Two steps of the whole layout; the memory of each rank, and what they called in the first.
struct Real {
  std::vector<MemoryPlan> memory;
  CallRecord calls;
  std::map<std::string, std::map<int, std::vector<std::int64_t>>> before_the_step;  // as calls.exchanged, of making it
};

// The calls of a rank so far, and exchanged bytes, by group.
struct Calls {
  std::map<std::string, std::vector<std::string>> calls;
  std::map<std::string, std::vector<std::int64_t>> exchanged;
};
Calls calls_of(CallRecord& record, int rank) {
  const std::lock_guard lock(record.mutex);
  Calls found;
  const auto take = [&](const auto& from, auto& to) {
    for (const auto& [label, by_rank] : from) {
      if (const auto own = by_rank.find(rank); own != by_rank.end()) {
        to[label] = own->second;
      }
    }
  };
  take(record.calls, found.calls);
  take(record.exchanged, found.exchanged);
  return found;
}
// Forgets what came later.
void put_back(CallRecord& record, int rank, const Calls& calls) {
  const std::lock_guard lock(record.mutex);
  const auto put = [&](auto& to, const auto& from) {
    for (auto& [label, by_rank] : to) {
      by_rank.erase(rank);
      if (const auto own = from.find(label); own != from.end()) {
        by_rank[rank] = own->second;
      }
    }
  };
  put(record.calls, calls.calls);
  put(record.exchanged, calls.exchanged);
}

void run_for_real(const Config& config, Real& real) {
  Session session(config);
  real.memory.resize(session.world_size());
  run_threads(session.world_size(), [&](Communicator& communicator) {
    RecordingCommunicator recording(communicator, real.calls);
    test::TestRank rank(config, recording);
    {  // the first spreading of weights, and the first messages of a pipeline's links, are no part of a step
      const std::lock_guard lock(real.calls.mutex);
      for (auto& [label, by_rank] : real.calls.calls) {
        by_rank.erase(communicator.rank());
      }
      for (auto& [label, by_rank] : real.calls.exchanged) {
        if (auto own = by_rank.extract(communicator.rank())) {
          real.before_the_step[label][communicator.rank()] = std::move(own.mapped());
        }
      }
    }
    rank.trainer().step(0);
    MemoryPlan& memory = real.memory[communicator.rank()];
    for (const auto& group : rank.trainer().parameters().groups()) {
      memory.weights += bytes_of(group->whole_weight ? group->weight : group->owned_weight);
      memory.gradients += bytes_of(group->whole_grad ? group->grad : group->owned_grad);
      const bool shared = group->master.data() == group->owned_weight.data();
      memory.states += shared ? 0 : bytes_of(group->master);
      for (const ParamState& state : group->states) {
        memory.states += bytes_of(state.values);
      }
      for (const PluginState& state : group->plugin_states) {
        memory.states += bytes_of(state.tensor);
      }
    }
    for (const GateState& state : rank.trainer().parameters().gate_states()) {
      memory.states += bytes_of(state.value);
    }
    memory.other = rank.stream().device().memory().current_bytes - memory.weights - memory.gradients - memory.states;
    const Calls of_step = calls_of(real.calls, communicator.rank());
    rank.trainer().step(1);
    const MemoryUse use = rank.stream().device().memory();
    memory.peak = use.peak_bytes;
    memory.peak_kinds = use.peak_kinds;
    put_back(real.calls, communicator.rank(), of_step);
  });
}

// A call as the recording communicator writes it.
std::string text_of(const CollectiveCall& call) {
  const std::string operation = call.operation;
  if (operation == "barrier") {
    return operation;
  }
  if (operation == "all_to_all") {
    return fmt::format("all_to_all {}", name_of(call.dtype));
  }
  const std::int64_t bytes = operation == "reduce_scatter" || operation == "scatter" ? call.bytes_out : call.bytes_in;
  return fmt::format("{} {} {}", operation, name_of(call.dtype),
                     bytes / static_cast<std::int64_t>(size_of(call.dtype)));
}

class Planned : public testing::TestWithParam<Case> {};

TEST_P(Planned, BytesAndCollectivesEqualThoseOfARealStep) {
  const Config config = experiment(GetParam().overrides, GetParam().plugins);
  Real real;
  run_for_real(config, real);
  for (int r = 0; r < static_cast<int>(real.memory.size()); ++r) {
    const RankPlan plan = plan_rank(config, r);
    const MemoryPlan& measured = real.memory[r];
    EXPECT_GT(measured.weights, 0);
    EXPECT_EQ(plan.memory.weights, measured.weights) << "rank " << r;
    EXPECT_EQ(plan.memory.gradients, measured.gradients) << "rank " << r;
    EXPECT_EQ(plan.memory.states, measured.states) << "rank " << r;
    EXPECT_EQ(plan.memory.states, plan.memory.peak_kinds[MemoryKind::states]) << "two tables of a plan, rank " << r;
    if (GetParam().plugins.find("ring") == std::string::npos) {  // whose side stream may still hold what it sent
      EXPECT_EQ(plan.memory.other, measured.other) << "rank " << r;
    }
    // How long side streams hold what they send or gather depends on when they get to run: with both, more.
    const std::string& plugins = GetParam().plugins;
    const bool both = plugins.find("pipeline") != std::string::npos && plugins.find("zero") != std::string::npos;
    const double near = both ? 0.1 : 0.05, peak = static_cast<double>(measured.peak);
    EXPECT_NEAR(static_cast<double>(plan.memory.peak) / peak, 1, near) << "rank " << r;
    EXPECT_EQ(plan.memory.peak_kinds.total(), plan.memory.peak) << "rank " << r;
    // Moments that are close to the peak differ in kinds, and which of them is the peak depends on side streams too.
    const double near_kind = both ? 0.1 : 0.06;
    for (MemoryKind kind : all_memory_kinds) {
      EXPECT_NEAR(static_cast<double>(plan.memory.peak_kinds[kind]) / peak,
                  static_cast<double>(measured.peak_kinds[kind]) / peak, near_kind)
          << "rank " << r << ", " << name_of(kind);
    }

    std::map<std::string, std::vector<std::string>> calls;
    std::map<std::string, std::vector<std::int64_t>> exchanged;
    for (const CollectiveCall& call : plan.step.calls) {
      const RecordedGroup& group = plan.step.groups[call.group];
      const std::string label = fmt::format("{} #{} [{}]", group.name, call.group, fmt::join(group.members, " "));
      const std::string operation = call.operation;
      if (operation == "all_to_all" || operation == "send") {
        exchanged[label].push_back(call.bytes_sent);
      }
      if (operation != "send" && operation != "recv") {
        calls[label].push_back(text_of(call));
      }
    }
    std::size_t groups = 0;
    for (const auto& [label, by_rank] : real.calls.calls) {
      if (const auto mine = by_rank.find(r); mine != by_rank.end()) {
        ++groups;
        EXPECT_EQ(calls[label], mine->second) << label << ", rank " << r;
      }
    }
    EXPECT_EQ(calls.size(), groups) << "rank " << r;
    for (const auto& [label, by_rank] : real.calls.exchanged) {
      if (const auto mine = by_rank.find(r); mine != by_rank.end()) {
        EXPECT_EQ(exchanged[label], mine->second) << label << ", rank " << r;
        if (label.find("between stages") != std::string::npos) {  // one element: communicators connect the link by it
          EXPECT_EQ(real.before_the_step[label][r], std::vector<std::int64_t>{4}) << label << ", rank " << r;
        }
      }
    }
  }
}

const Overrides every_expert = {"moe.top_k=4"};
const Overrides full_experts = {"moe.capacity_factor=0.01", "data.sequence_length=24", "moe.group_tokens=48"};

const Overrides dense = {"moe.experts=0", "data.sequence_length=16"};
const std::string ulysses = "[plugins.sequence]\nsize = 2\n",
                  ring = "[plugins.sequence]\nsize = 4\nmethod = \"ring\"\n";

std::string zero(int stage) {
  return fmt::format("[plugins.data]\nsize = 4\nzero = {}\n[plugins.expert]\nsize = 2\n", stage);
}

// Of two stages, the outermost axis.
std::string pipeline(const char* schedule, int chunks) {
  return fmt::format("[plugins.pipeline]\nsize = 2\nschedule = \"{}\"\nchunks = {}\n", schedule, chunks);
}

std::string tensor(int size, const char* keys = "") {
  return fmt::format("[plugins.tensor]\nsize = {}\n{}", size, keys);
}

const std::string adafactor = fmt::format("[plugins.adafactor]\npath = \"{}\"\n", paths::out_of_tree("adafactor"));

const Case cases[] = {
    {"one_rank", every_expert, ""},
    {"data2", every_expert, axes(2)},
    {"data4_expert2", every_expert, axes(4, 2)},
    {"data4_expert4", full_experts, axes(4, 4)},
    {"data2_expert2_full", full_experts, axes(2, 2)},
    {"micro_batches", joined(every_expert, {"batch.micro_batch=1"}), axes(4, 2)},
    {"bf16", joined(full_experts, {R"(run.dtype="bf16")"}), axes(4, 2)},
    {"low_memory",
     joined(full_experts, {R"(run.dtype="bf16")", R"(optimizer.master_weights="none")",
                           R"(optimizer.state_dtype="8bit")", "model.d_model=32"}),
     zero(2)},
    {"narrow_gradients",
     joined(full_experts,
            {R"(run.dtype="bf16")", R"(optimizer.gradient_dtype="bf16")", "batch.micro_batch=2", "model.layers=4"}),
     axes(4, 2)},
    {"narrow_gradients_zero2", joined(every_expert, {R"(optimizer.gradient_dtype="bf16")", "batch.micro_batch=1"}),
     zero(2)},
    {"adafactor", joined(every_expert, {R"(optimizer.name="adafactor")"}), adafactor + zero(2)},
    {"adafactor_hybrid_tensor", joined(every_expert, {R"(optimizer.name="adafactor")", "model.kv_heads=2"}),
     adafactor + "[plugins.data]\nsize = 4\nzero = 1\nshard_ranks = 2\n" + tensor(4)},
    {"adafactor_low_memory",
     joined(full_experts,
            {R"(optimizer.name="adafactor")", R"(run.dtype="bf16")", R"(optimizer.master_weights="none")",
             R"(optimizer.state_dtype="8bit")", R"(optimizer.gradient_dtype="bf16")", "model.d_model=32"}),
     adafactor + "beta1 = 0.9\n" + zero(3)},
    {"averages", joined(every_expert, {"optimizer.ema_decay=0.9", R"(run.dtype="bf16")"}), zero(2)},
    {"averages_low_memory",
     joined(full_experts, {R"(run.dtype="bf16")", R"(optimizer.master_weights="none")", "optimizer.ema_decay=0.9"}),
     axes(2)},
    {"states_of_a_gate_and_a_keeper", joined(every_expert, {R"(moe.router="bias")"}),
     fmt::format("[plugins.topk_sums]\npath = \"{}\"\ndensity = 0.1\n", paths::out_of_tree("topk_sums")) + axes(2)},
    {"sgd_tied_jitter_dropout",
     joined(every_expert,
            {R"(optimizer.name="sgd")", "model.tie_embeddings=true", "moe.jitter=0.1", "model.dropout=0.1"}),
     axes(2, 2)},
    {"shared_experts_learned_positions",
     joined(every_expert, {"moe.shared_experts=2", R"(model.positions="learned")", R"(model.norm="layernorm")"}),
     axes(4, 2)},
    {"dense", {"moe.experts=0"}, axes(4)},
    {"ulysses", dense, ulysses},
    {"data_ulysses_bf16_few_kv_heads", joined(dense, {R"(run.dtype="bf16")", "model.kv_heads=1"}), axes(2) + ulysses},
    {"ring", dense, ring},
    {"data_ring_micro_batches", joined(dense, {"batch.micro_batch=1"}), axes(2) + ring},
    {"ulysses_expert_micro_batches", joined(every_expert, {"batch.micro_batch=2"}), axes(2) + ulysses + axes(0, 4)},
    {"ring_expert", joined(every_expert, {"data.sequence_length=48"}), ring + axes(0, 2)},
    {"expert_choice", {R"(moe.router="expert_choice")", "moe.top_k=0", "moe.capacity_factor=1.5"}, axes(4, 2)},
    {"zero1", every_expert, zero(1)},
    {"zero2_micro_batches", joined(every_expert, {"batch.micro_batch=1"}), zero(2)},
    {"zero3_bf16", joined(every_expert, {"batch.micro_batch=1", R"(run.dtype="bf16")"}), zero(3)},
    {"recompute_selective", joined(every_expert, {R"(memory.recompute="selective")", "batch.micro_batch=2"}),
     axes(2, 2)},
    {"recompute_full", joined(full_experts, {R"(memory.recompute="full")"}), zero(3)},
    {"gpipe", joined(every_expert, {"batch.micro_batch=2"}), pipeline("gpipe", 1)},
    {"1f1b_data_expert_tied", joined(every_expert, {"batch.micro_batch=1", "model.tie_embeddings=true"}),
     pipeline("1f1b", 1) + axes(2, 2)},
    {"interleaved_zero", joined(every_expert, {"batch.micro_batch=1", "batch.sequences=16", "model.layers=4"}),
     pipeline("interleaved", 2) + zero(2)},
    {"1f1b_keep_micro_batches",
     joined(every_expert,
            {"model.layers=4", "batch.micro_batch=1", R"(memory.recompute="full")", "memory.keep_micro_batches=1"}),
     pipeline("1f1b", 1) + axes(2, 2)},
    {"interleaved_keep_micro_batches",
     joined(every_expert,
            {"model.layers=8", "batch.micro_batch=2", R"(memory.recompute="full")", "memory.keep_micro_batches=2"}),
     pipeline("interleaved", 2)},
    {"tensor4_few_kv_heads", joined(every_expert, {"model.kv_heads=1", "model.tie_embeddings=true"}), tensor(4)},
    {"tensor2_cut_rows_data_expert", joined(every_expert, {"moe.shared_experts=1", "batch.micro_batch=2"}),
     axes(2, 2) + tensor(2, "sequence_parallel = true\n")},
    {"tensor2_folded_bf16", joined(every_expert, {R"(run.dtype="bf16")", "data.sequence_length=48"}),
     axes(2, 4) + tensor(2, "experts = \"fold\"\n")},
    {"tensor2_folded_cut_rows", joined(every_expert, {"data.sequence_length=48"}),
     tensor(2, "experts = \"fold\"\nsequence_parallel = true\n") + axes(0, 2)},
    {"long_sequences", joined(every_expert, {"data.sequence_length=96", "batch.micro_batch=2"}), axes(2, 2)},
};

INSTANTIATE_TEST_SUITE_P(Layouts, Planned, testing::ValuesIn(cases),
                         [](const auto& c) { return std::string(c.param.name); });

// --- what the plan says of the layout, against lists written out by hand

TEST(Planning, MeshListsEveryGroup) {
  const MeshPlan mesh = plan_mesh(experiment({}, axes(4, 2)));
  EXPECT_EQ(mesh.world_size, 4);
  ASSERT_EQ(mesh.axes.size(), 2u);
  EXPECT_EQ(mesh.axes[0].name, "data");
  ASSERT_EQ(mesh.axes[0].splits.size(), 1u);
  EXPECT_EQ(mesh.axes[0].splits[0].dim, "batch");
  EXPECT_EQ(mesh.axes[0].groups, (std::vector<std::vector<int>>{{0, 1, 2, 3}}));
  EXPECT_EQ(mesh.axes[1].size, 2);
  EXPECT_EQ(mesh.axes[1].carved_from, (std::vector<std::string>{"batch", "position"}));
  EXPECT_EQ(mesh.axes[1].carved_in, (std::vector<std::string>{"experts"}));
  EXPECT_EQ(mesh.axes[1].groups, (std::vector<std::vector<int>>{{0, 1}, {2, 3}}));
  ASSERT_EQ(mesh.stages.size(), 1u);
  EXPECT_EQ(mesh.stages[0].ranks, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(mesh.stages[0].chunks, (std::vector<std::pair<int, int>>{{0, 4}}));
}

TEST(Planning, StagesListTheirLayers) {
  const MeshPlan mesh =
      plan_mesh(experiment({"model.layers=4", "batch.micro_batch=1"}, axes(2) + "[plugins.pipeline]\nsize = 2\n"));
  ASSERT_EQ(mesh.stages.size(), 2u);
  EXPECT_EQ(mesh.stages[0].ranks, (std::vector<int>{0, 2}));
  EXPECT_EQ(mesh.stages[1].ranks, (std::vector<int>{1, 3}));
  EXPECT_EQ(mesh.layers, 6);
  ASSERT_EQ(mesh.stages[0].chunks.size(), 1u);
  EXPECT_EQ(mesh.stages[0].chunks[0].first, 0);
  EXPECT_EQ(mesh.stages[0].chunks[0].second, mesh.stages[1].chunks[0].first);
  EXPECT_EQ(mesh.stages[1].chunks[0].second, 6);
}

TEST(Planning, RanksOfAStageAreAClassAndTheFirstStageKeepsMoreActivations) {
  const Config config = experiment(joined(every_expert, {"model.layers=4", "batch.micro_batch=1"}),
                                   axes(2) + "[plugins.pipeline]\nsize = 2\n");
  const std::vector<RankClass> classes = plan_classes(config);
  ASSERT_EQ(classes.size(), 2u);
  EXPECT_EQ(classes[0].ranks, (std::vector<int>{0, 2}));
  EXPECT_EQ(classes[1].ranks, (std::vector<int>{1, 3}));
  EXPECT_GT(classes[0].memory.peak, classes[1].memory.peak) << "two micro-batches in flight, not one";
}

TEST(Planning, ARankHoldsItsExpertsAndAllDenseParameters) {
  const RankPlan plan = plan_rank(experiment({}, axes(4, 2)), 3);
  std::vector<std::string> experts;
  for (const HeldParam& p : plan.params) {
    const bool expert = p.name.find(".experts.") != std::string::npos;
    EXPECT_EQ(p.summed_over, expert ? (std::vector<int>{1, 3}) : (std::vector<int>{0, 1, 2, 3})) << p.name;
    EXPECT_EQ(p.size, p.global) << p.name;
    if (p.name.starts_with("model.layers.1.") && p.name.ends_with(".w1.weight")) {
      experts.push_back(p.name);
      EXPECT_EQ(p.global, (std::vector<std::int64_t>{16, 16}));
    }
  }
  EXPECT_EQ(experts, (std::vector<std::string>{"model.layers.1.block_sparse_moe.experts.2.w1.weight",
                                               "model.layers.1.block_sparse_moe.experts.3.w1.weight"}));
}

TEST(Planning, GroupsSayAlongWhichAxesTheirMembersDiffer) {
  const RankPlan plan = plan_rank(experiment({}, axes(4, 2)), 0);
  std::map<std::vector<int>, std::string> axis;
  for (std::size_t g = 0; g < plan.axis.size(); ++g) {
    axis[plan.step.groups[g].members] = plan.axis[g];
  }
  EXPECT_EQ(axis[(std::vector<int>{0, 1, 2, 3})], "data");
  EXPECT_EQ(axis[(std::vector<int>{0, 1})], "expert");
  EXPECT_EQ(axis[(std::vector<int>{0, 2})], "data, same expert");
}

TEST(Planning, RanksThatAreAlikeAreOneClass) {
  const Config config = experiment(every_expert, axes(4, 2));
  const std::vector<RankClass> classes = plan_classes(config);
  ASSERT_EQ(classes.size(), 1u);
  EXPECT_EQ(classes[0].ranks, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(classes[0].memory, plan_rank(config, 2).memory);
  EXPECT_EQ(classes[0].worst.peak_kinds.total(), classes[0].worst.peak);
  EXPECT_EQ(classes[0].sent, bytes_sent(plan_rank(config, 2).step));
}

TEST(Planning, ARankThatDoesNotExistIsRefused) {
  const Config config = experiment({}, axes(4, 2));
  EXPECT_THROW(plan_rank(config, 4), ConfigError);
  EXPECT_THROW(plan_rank(config, -1), ConfigError);
}

// A model of 400 billion parameters: nothing of it is ever allocated.
TEST(Planning, AModelLargerThanThisMachine) {
  const RankPlan plan =
      plan_rank(experiment({"model.layers=4", "model.d_model=8192", "model.d_ff=32768", "moe.experts=128",
                            "model.heads=64", "data.sequence_length=4096", R"(run.dtype="bf16")"},
                           axes(8, 8)),
                0);
  EXPECT_GT(plan.memory.peak, std::int64_t{400} << 30);
  EXPECT_GT(bytes_sent(plan.step), std::int64_t{1} << 30);
}

// A dense block of sequence parallelism gathers what enters its attention and its FFN, the gradients of what leaves
// them, and in the backward pass what enters once more, where somebody learns from it.
TEST(Planning, SequenceParallelismGathersItsInputsAgain) {
  const auto calls = [](const char* operation, int layers, const Overrides& how) {
    const RankPlan plan = plan_rank(experiment(joined(joined(dense, how), {fmt::format("model.layers={}", layers)}),
                                               tensor(2, "sequence_parallel = true\n")),
                                    0);
    std::int64_t count = 0;
    for (const CollectiveCall& call : plan.step.calls) {
      const bool boundary = plan.step.groups[call.group].name == "tensor";
      count += boundary && std::string(call.operation) == operation ? call.times : 0;
    }
    return count;
  };
  const auto of_a_block = [&](const char* operation, const Overrides& how) {
    return calls(operation, 4, how) - calls(operation, 3, how);
  };
  EXPECT_EQ(of_a_block("all_gather", {}), 6);
  EXPECT_EQ(of_a_block("reduce_scatter", {}), 4);
  EXPECT_EQ(of_a_block("all_gather", {R"(train.freeze=["*mlp*"])"}), 5) << "the frozen FFN needs no input";
  EXPECT_EQ(of_a_block("all_gather", {R"(memory.recompute="full")"}), 6) << "of a forward pass that is made again";
}

}  // namespace
}  // namespace orthant::planning_test
