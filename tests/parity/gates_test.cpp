// Gates that keep state, choose by groups of experts, or know the load of the whole batch, and one of a plugin's own:
// each trains as on one rank in layouts of every axis, in fp32 and in bf16.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/run/saving.h"
#include "parallel/local/thread_world.h"
#include "tests/support/parity.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::gates_test {
namespace {

namespace fs = std::filesystem;
using test::axes;
using test::expect_parity;
using test::experiment;
using test::Model;
using test::OneRank;
using test::Overrides;
using test::TestRank;
using testing::HasSubstr;

std::string table(const std::string& axis, int size, const std::string& keys = "") {
  return fmt::format("[plugins.{}]\nsize = {}\n{}", axis, size, keys);
}

const Overrides base = {"model.layers=4", "moe.every=2", "moe.experts=8"};

const Model gates[] = {
    {"bias", {R"(moe.router="bias")", R"(moe.score="sigmoid")", "moe.bias_update_rate=0.05"}},
    {"bias_groups",
     {R"(moe.router="bias")", R"(moe.score="sigmoid")", "moe.bias_update_rate=0.05", "moe.expert_groups=4",
      "moe.groups_per_token=2", "moe.capacity_factor=1.0"}},
    {"groups", {"moe.expert_groups=4", "moe.groups_per_token=2", "moe.aux_loss=1"}},
    {"balance_over_batch", {R"(moe.balance_over="batch")", "moe.aux_loss=1"}},
    {"balance_over_batch_switch",
     {R"(moe.balance_over="batch")", R"(moe.router="switch")", "moe.top_k=1", "moe.aux_loss=1"}},
    {"zero_experts", {"moe.zero_experts=3", "moe.capacity_factor=1.0", "moe.aux_loss=1"}},
    {"copy_experts", {"moe.zero_experts=3", R"(moe.zero_expert="copy")", "moe.weight_scale=2.5", "moe.jitter=0.1"}},
    {"copy_experts_bias",
     {"moe.zero_experts=8", R"(moe.zero_expert="copy")", R"(moe.router="bias")", R"(moe.balance_over="batch")",
      "moe.bias_update_rate=0.05", R"(memory.recompute="full")"}},
};

struct Layout {
  const char* name;
  std::string plugins;
  int ranks;
};
const Layout layouts[] = {
    {"data", table("data", 2), 2},
    {"expert", table("data", 4) + table("expert", 4), 4},
    {"tensor_pipeline_zero_expert",
     table("tensor", 2) + table("pipeline", 2) + table("data", 2, "zero = 2\n") + table("expert", 2), 8},
    {"sequence_zero3_expert",
     table("sequence", 2) + table("data", 2, "zero = 3\nwhole_below = 0\n") + table("expert", 4), 4},
    {"folded", table("tensor", 2, "experts = \"fold\"\n") + table("data", 2) + table("expert", 4), 4},
};

class Gates : public testing::TestWithParam<std::tuple<Layout, Model>> {};

TEST_P(Gates, TrainAsOnOneRank) {
  const auto& [layout, gate] = GetParam();
  expect_parity(test::joined(base, gate.overrides), layout.plugins, {.steps = 3, .ranks = layout.ranks});
}

INSTANTIATE_TEST_SUITE_P(Parity, Gates, testing::Combine(testing::ValuesIn(layouts), testing::ValuesIn(gates)),
                         [](const auto& cell) {
                           return fmt::format("{}_{}", std::get<0>(cell.param).name, std::get<1>(cell.param).name);
                         });

// Micro-batches do not matter to the bias: its step comes once, from the load of all of them.
TEST(Gates, TheBiasKnowsTheGlobalBatch) {
  expect_parity(test::joined(base, gates[0].overrides), table("pipeline", 2) + table("data", 2),
                {.steps = 3, .ranks = 4, .only_here = {"batch.micro_batch=1"}});
  expect_parity(test::joined(base, test::joined(gates[0].overrides, {R"(run.dtype="bf16")"})),
                table("data", 2) + table("expert", 2), {.ranks = 2});
}

// Axes that add up parts of sums, each rounded to bf16, route near ties otherwise (as with every other gate).
TEST(Gates, InBf16) {
  for (const Model& gate : gates) {
    expect_parity(test::joined(base, test::joined(gate.overrides, {R"(run.dtype="bf16")"})),
                  table("data", 2) + table("expert", 2), {.ranks = 2});
  }
}

// A capacity so small that most choices are dropped: the load counts them all the same.
TEST(Gates, TheBiasEvensOutTheLoad) {
  const auto worst = [](const std::string& router, int steps) {
    OneRank rank(
        experiment({fmt::format("moe.router=\"{}\"", router), "moe.experts=8", "moe.top_k=1", "moe.aux_loss=0",
                    "moe.bias_update_rate=0.02", R"(moe.score="sigmoid")", "optimizer.lr=1e-4", "batch.sequences=32"}));
    double mean = 0;
    for (int step = 0; step < steps; ++step) {
      mean += step < steps - 5 ? 0 : rank->trainer().step(step).expert_load_max_over_mean() / 5;
      if (step < steps - 5) {
        rank->trainer().step(step);
      }
    }
    return mean;
  };
  EXPECT_LT(worst("bias", 40), 0.7 * worst("topk", 40));
}

TEST(Gates, TheBiasMovesByTheRateAgainstTheLoad) {
  OneRank rank(experiment({R"(moe.router="bias")", "moe.bias_update_rate=0.125"}));
  const StepReport report = rank->trainer().step(0);
  const std::vector<GateState>& states = rank->trainer().parameters().gate_states();
  for (const GateState& state : states) {
    std::vector<float> bias(4);
    rank->stream().download(bias.data(), state.value);
    const std::vector<std::int64_t>& load = report.layers[static_cast<std::size_t>(&state - states.data())].load;
    const double mean = static_cast<double>(load[0] + load[1] + load[2] + load[3]) / 4;
    for (std::size_t e = 0; e < 4; ++e) {
      const double n = static_cast<double>(load[e]);
      EXPECT_EQ(bias[e], n < mean ? 0.125f : n > mean ? -0.125f : 0.0f) << state.name << " expert " << e;
    }
  }
}

// A router that is to stay as it was trained keeps its bias too.
TEST(Gates, TheBiasOfAFrozenRouterStays) {
  struct Case {
    Overrides more;
    bool moves;
  };
  for (const Case& c : {Case{{R"(train.freeze=["*.block_sparse_moe.gate.weight"])"}, false},
                        Case{{R"(train.train_only=["*.q_proj.weight"])"}, false},
                        Case{{"lora.rank=2", R"(lora.targets=["*.q_proj.weight"])"}, false},
                        Case{{"lora.rank=2", R"(lora.targets=["*.block_sparse_moe.gate.weight"])"}, true},
                        Case{{"lora.rank=2", R"(lora.targets=["*.q_proj.weight"])",
                              R"(lora.train_also=["*.block_sparse_moe.gate.weight"])"},
                             true}}) {
    Overrides overrides = {R"(moe.router="bias")", "moe.bias_update_rate=0.125"};
    overrides.insert(overrides.end(), c.more.begin(), c.more.end());
    OneRank rank(experiment(overrides));
    rank->trainer().step(0);
    for (const GateState& state : rank->trainer().parameters().gate_states()) {
      std::vector<float> bias(4);
      rank->stream().download(bias.data(), state.value);
      EXPECT_EQ(bias != std::vector<float>(4, 0.0f), c.moves) << state.name << " " << c.more.back();
    }
  }
}

// --- checkpoints

// Trains `steps` from `from` (or the start), saves to `to`, and returns the loss of the next step.
double run(const Config& config, const fs::path& from, const fs::path& to, int first, int steps, fs::path& saved) {
  double loss = 0;
  std::mutex mutex;
  run_threads(check_layout(config), [&](Communicator& communicator) {
    TestRank rank(config, communicator);
    if (!from.empty()) {
      load_checkpoint(CheckpointReader(from), rank.session().plan(), rank.trainer().parameters(), rank.stream());
    }
    for (int step = first; step < first + steps; ++step) {
      rank.trainer().step(step);
    }
    const fs::path folder = save_checkpoint(to, first + steps, rank.session().plan(), rank.trainer().parameters(), {},
                                            {communicator, rank.trainer().world()}, rank.stream());
    const double next = rank.trainer().gradients(first + steps).loss;
    const std::lock_guard lock(mutex);
    if (communicator.rank() == 0) {
      loss = next;
      saved = folder;
    }
  });
  return loss;
}

TEST(Gates, TheBiasIsSavedAndLoadsIntoAnyLayout) {
  const run_test::ProgramFolder folder;
  const Overrides overrides = test::joined(base, gates[1].overrides);
  const Config one = experiment(overrides);
  fs::path first, whole, other;
  run(one, {}, folder.path("first"), 0, 2, first);
  const CheckpointReader reader(first);
  ASSERT_TRUE(reader.has("gate/model.layers.1.block_sparse_moe"));
  EXPECT_EQ(reader.info("gate/model.layers.1.block_sparse_moe").shape, Shape{8});
  require_same_parameters(reader, one.settings);
  EXPECT_THROW(require_same_parameters(reader, experiment(base).settings), Error);
  const double straight = run(one, first, folder.path("whole"), 2, 2, whole);
  for (const Layout& layout : layouts) {
    const double resumed = run(experiment(overrides, layout.plugins), first, folder.path(layout.name), 2, 2, other);
    EXPECT_NEAR(resumed, straight, 1e-5 * straight) << layout.name;
  }
  // A checkpoint of another gate is not taken for one of this.
  run(experiment(base), {}, folder.path("topk"), 0, 1, other);
  try {
    run(one, other, folder.path("no"), 1, 1, whole);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("it is of another gate"));
  }
}

// --- a gate out of tree, by token ids, with an operation of its own

Overrides hashed(const Overrides& more = {}) {
  return test::joined(base, test::joined({R"(moe.router="hash")", "moe.top_k=0"}, more));
}
std::string hash_gate() {
  return fmt::format("[plugins.hash_gate]\npath = \"{}\"\n", paths::out_of_tree("hash_gate"));
}

TEST(HashGate, TrainsAsOnOneRankInEveryLayout) {
  for (const Layout& layout : layouts) {
    for (const Overrides& more : {Overrides{}, Overrides{"moe.top_k=2", "moe.capacity_factor=1.0"}}) {
      const VerifyReport report = verify(experiment(hashed(more), layout.plugins + hash_gate()), 2);
      EXPECT_TRUE(report.ok()) << layout.name << ": " << test::differences(report);
    }
  }
  const char* path = std::getenv("ORTHANT_PLUGIN_PATH");
  setenv("ORTHANT_PLUGIN_PATH", (paths::build("tests/parity") + ":" + (path == nullptr ? "" : path)).c_str(), 1);
  Config late = experiment(hashed(), table("data", 2) + hash_gate());
  for (const char* device : {"guarded", "late"}) {
    late.settings.run.device = device;
    EXPECT_TRUE(verify(late, 2).ok()) << device;
  }
}

// --- a gate out of tree whose tokens have as many experts as they need, with a penalty that adapts

TEST(ReluGate, TrainsAsOnOneRankInEveryLayout) {
  const std::string gate =
      fmt::format("[plugins.relu_gate]\npath = \"{}\"\nexperts_of_token = 1.5\n", paths::out_of_tree("relu_gate"));
  for (const Layout& layout : layouts) {
    for (const Overrides& more : {Overrides{}, Overrides{"moe.zero_experts=2", R"(moe.zero_expert="copy")"}}) {
      const Overrides overrides =
          test::joined(base, test::joined({R"(moe.router="relu")", "moe.top_k=0", "moe.aux_loss=0.01"}, more));
      const VerifyReport report = verify(experiment(overrides, layout.plugins + gate), 3);
      EXPECT_TRUE(report.ok()) << layout.name << ": " << test::differences(report);
    }
  }
}

// Half of the logits are above 0 at first: four experts a token of eight. The penalty grows until there are 1.5.
TEST(ReluGate, ReachesTheExpertsThatAreAskedFor) {
  const std::string gate = fmt::format("[plugins.relu_gate]\npath = \"{}\"\nexperts_of_token = 1.5\nrate = 0.5\n",
                                       paths::out_of_tree("relu_gate"));
  OneRank rank(experiment({R"(moe.router="relu")", "moe.top_k=0", "moe.experts=8", "moe.aux_loss=1e-3",
                           "batch.sequences=16", "optimizer.lr=0.02", "optimizer.warmup_steps=0"},
                          gate));
  const auto each = [](const StepReport& report) {
    return static_cast<double>(report.layers.front().choices) / static_cast<double>(report.tokens);
  };
  EXPECT_NEAR(each(rank->trainer().step(0)), 4, 1);
  double mean = 0;
  for (int step = 1; step <= 60; ++step) {
    mean += step > 40 ? each(rank->trainer().step(step)) / 20 : 0 * each(rank->trainer().step(step));
  }
  EXPECT_NEAR(mean, 1.5, 0.5);
}

// Equal ids go to equal experts, and every expert has equally many ids.
TEST(HashGate, IsBalancedOverTheVocabulary) {
  OneRank rank(experiment(hashed({"model.vocab_size=64", "batch.sequences=64"}), hash_gate()));
  const StepReport report = rank->trainer().step(0);
  EXPECT_EQ(report.drop_rate(), 0);
  EXPECT_EQ(report.layers.front().load, report.layers.back().load) << "the same in each layer: it knows ids alone";
}

}  // namespace
}  // namespace orthant::gates_test
