// Weights of routed experts that come after the gate: the bits of the run without, and the bytes of who has rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "core/dry_run/promise.h"
#include "tests/support/parity.h"

namespace orthant::expert_weights_test {
namespace {

using test::experiment;
using test::Overrides;
using testing::HasSubstr;

std::string after_gate(const std::string& keys = "") {
  return "[plugins.offload]\nexpert_weights = \"after_gate\"\nweights = \"host\"\n" + keys;
}

// Eight experts, of which some have no rows in a micro-batch.
const Overrides few_rows = {"moe.experts=8", "moe.top_k=1", "batch.sequences=4", "batch.micro_batch=1",
                            "model.layers=4"};

struct Layout {
  const char* name;
  Overrides overrides;
  std::string plugins;
  const char* device;
};
void PrintTo(const Layout& layout, std::ostream* out) {
  *out << layout.name;
}
class AfterGate : public testing::TestWithParam<Layout> {};

TEST_P(AfterGate, HasTheBitsOfTheLayoutWithout) {
  const auto& [name, overrides, plugins, device] = GetParam();
  const Overrides all = test::joined(few_rows, overrides);
  const Snapshot without = take_snapshot(experiment(all, plugins), 4);
  for (const char* keys :
       {"", "pinned_experts = 2\nstates = \"host\"\n", "pinned_experts = 1\nhost_rows = 5\ngradients = \"host\"\n",
        "host_rows = 1000\nstates = \"host\"\n"}) {
    SCOPED_TRACE(keys);
    Config config = experiment(all, plugins + after_gate(keys));
    config.settings.run.device = device;
    test::expect_same_bits(take_snapshot(config, 4), without);
  }
}

const std::string data = "[plugins.data]\nsize = 2\n";
const std::string expert = "[plugins.expert]\nsize = 2\n";
const Layout layouts[] = {
    {"one_rank", {}, "", "guarded"},
    {"bf16_recompute", {R"(run.dtype="bf16")", R"(memory.recompute="full")"}, "", "late"},
    {"capacity", {"moe.capacity_factor=1.0", "moe.every=2"}, "", "late_sides"},
    {"zero_2", {}, data + "zero = 2\n", "guarded"},
    {"zero_3_expert", {}, data + "zero = 3\nwhole_below = 0\n" + expert, "late"},
    {"chunks", {"moe.top_k=2"}, data + expert + "chunks = 2\n", "late_sides"},
    {"tensor_pipeline", {}, "[plugins.tensor]\nsize = 2\n[plugins.pipeline]\nsize = 2\n", "late"},
    {"in_backward", {"optimizer.in_backward=true", "optimizer.clip_grad_norm=0"}, "", "late"},
    {"interleaved", {}, "[plugins.pipeline]\nsize = 2\nschedule = \"interleaved\"\nchunks = 2\n", "guarded"},
};
INSTANTIATE_TEST_SUITE_P(Offload, AfterGate, testing::ValuesIn(layouts), [](const auto& l) { return l.param.name; });

// Pins follow weights that an update changed before the norm was known, and those that it changed once more.
TEST(ExpertWeights, UpdatesThatAreTriedHaveTheSameBits) {
  for (const char* clip : {"optimizer.clip_grad_norm=0.05", "optimizer.clip_grad_norm=1e9"}) {
    SCOPED_TRACE(clip);
    const Overrides all = test::joined(few_rows, {clip});
    Config config = experiment(all, after_gate("states = \"host\"\npinned_experts = 2\nclip = \"speculative\"\n"));
    config.settings.run.device = "late";
    test::expect_same_bits(take_snapshot(config, 4), take_snapshot(experiment(all, ""), 4));
  }
}

// One micro-batch a step: what came up in each step, and the experts that had rows in each layer of it.
struct Traffic {
  std::vector<double> up, down;
  std::vector<std::vector<std::vector<std::int64_t>>> rows;  // [step][layer][E]
  double dense = 0, head = 0, expert = 0;                    // elements; expert: of one
  double d = 0, hidden = 0, width = 0;                       // of an expert's rows: in and out, before, past activation
};

Traffic train(const std::string& table, int steps) {
  test::OneRank rank(experiment(test::joined(few_rows, {"batch.sequences=1", R"(run.dtype="bf16")"}), table));
  Traffic found;
  for (int step = 0; step < steps; ++step) {
    const StepReport report = rank->trainer().step(step);
    found.up.push_back(report.metrics.at("offload.to_device_bytes"));
    found.down.push_back(report.metrics.at("offload.to_host_bytes"));
    found.rows.emplace_back();
    for (const LayerCounters& layer : report.layers) {
      found.rows.back().push_back(layer.kept);
    }
  }
  for (const auto& group : rank->trainer().parameters().groups()) {
    const double elements = static_cast<double>(group->elements);
    found.dense += group->experts ? 0 : elements;
    found.head += group->name == "head" ? elements : 0;
    if (group->experts) {
      found.expert = elements / 8;
      found.width = static_cast<double>(group->params.front().size[0]);
      found.d = static_cast<double>(group->params.front().size[1]);
      found.hidden = found.expert / found.d - found.width;
    }
  }
  return found;
}

// States in the host's memory: dense weights come up for each pass, an expert's for each pass in which it has rows.
double expected_up(const Traffic& run, double experts_up) {
  return 2 * (2 * run.dense - run.head + experts_up * run.expert);
}

TEST(ExpertWeights, OnlyExpertsWithRowsTravel) {
  const Traffic run = train(after_gate("states = \"host\"\n"), 6);
  double most = 0;
  for (std::size_t step = 1; step < run.up.size(); ++step) {  // the order of groups is known from the second step on
    double experts_up = 0;
    for (const auto& layer : run.rows[step]) {
      experts_up += 2.0 * static_cast<double>(std::count_if(layer.begin(), layer.end(), [](auto n) { return n > 0; }));
    }
    EXPECT_EQ(run.up[step], expected_up(run, experts_up)) << step;
    most = std::max(most, experts_up);
  }
  EXPECT_LT(most, 2 * 4 * 8) << "in every layer all experts had rows: this tests nothing";
}

// A pinned expert comes up once a step, when it is first read; who is pinned follows from the rows so far.
TEST(ExpertWeights, PinnedExpertsTravelOnceAStep) {
  const Traffic run = train(after_gate("states = \"host\"\npinned_experts = 2\n"), 12);
  std::vector<std::vector<double>> load(4, std::vector<double>(8, 0.0));
  std::set<std::set<int>> all_pins;
  for (std::size_t step = 0; step < run.up.size(); ++step) {
    double experts_up = 0;
    for (std::size_t layer = 0; layer < 4; ++layer) {
      std::vector<int> order(8);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return load[layer][a] > load[layer][b]; });
      const std::set<int> pins(order.begin(), order.begin() + 2);
      all_pins.insert(pins);
      for (int e = 0; e < 8; ++e) {
        const std::int64_t rows = run.rows[step][layer][e];
        experts_up += rows == 0 ? 0 : pins.contains(e) ? 1 : 2;
        load[layer][e] = 0.9 * load[layer][e] + static_cast<double>(rows);
      }
    }
    if (step > 0) {
      EXPECT_EQ(run.up[step], expected_up(run, experts_up)) << step;
    }
  }
  EXPECT_GT(all_pins.size(), 2U) << "the pins never change: this tests little";
}

// Where experts are computed in the host's memory, rows travel and weights do not: two products forward and two
// backward.
TEST(ExpertWeights, RowsTravelToWeightsThatStay) {
  const Traffic run = train(after_gate("states = \"host\"\nhost_rows = 1000\n"), 4);
  for (std::size_t step = 1; step < run.up.size(); ++step) {
    double rows = 0;
    for (const auto& layer : run.rows[step]) {
      rows += static_cast<double>(std::accumulate(layer.begin(), layer.end(), std::int64_t{0}));
    }
    EXPECT_GT(rows, 0);
    const double moved = 2 * rows * (2 * run.d + run.hidden + run.width);
    EXPECT_EQ(run.up[step], expected_up(run, 0) + moved);
    EXPECT_EQ(run.down[step], 4 * (run.dense + 8 * 4 * run.expert) + moved);
  }
}

// A plan does not know the rows, and counts as many as there may be.
TEST(ExpertWeights, ThePlanCountsRowsInTheHostsMemory) {
  const auto of = [](const std::string& keys) {
    return experiment(test::joined(few_rows, {R"(run.dtype="bf16")"}), after_gate("states = \"host\"\n" + keys));
  };
  const Config config = of("host_rows = 16\n");
  test::OneRank rank(config);
  for (int step = 0; step < 3; ++step) {
    rank->trainer().step(step);
  }
  EXPECT_LE(rank->stream().device().host_memory().peak_bytes, memory_need(config).host);
  EXPECT_GT(memory_need(of("host_rows = 100000\n")).host, memory_need(of("")).host);
}

TEST(ExpertWeights, WhatCannotWaitForTheGateIsRefused) {
  EXPECT_THAT(test::refusal({}, data + "zero = 3\nwhole_below = 0\n" + after_gate()),
              HasSubstr("ranks share out the weights of 'layer 0 experts'"));
  EXPECT_THAT(test::refusal({}, "[plugins.offload]\nexpert_weights = \"after_gate\"\n"),
              HasSubstr("brings single experts from the host's memory"));
  EXPECT_THAT(test::refusal({}, "[plugins.offload]\nexpert_weights = \"after_gate\"\nweights = \"nvme\"\n"),
              HasSubstr("write weights = \"host\""));
  EXPECT_THAT(test::refusal({}, "[plugins.offload]\nweights = \"host\"\npinned_experts = 1\n"),
              HasSubstr("whose others come after the gate"));
  EXPECT_THAT(test::refusal({}, "[plugins.offload]\nweights = \"host\"\nhost_rows = 1\n"),
              HasSubstr("computes rows where the weights of their expert are"));
  EXPECT_THAT(test::refusal({"moe.experts=8"}, after_gate("pinned_experts = 9\n")),
              HasSubstr("a rank has 8 experts of 'layer 0 experts'"));
}

}  // namespace
}  // namespace orthant::expert_weights_test
