// Updates of experts that no token chose are put off and made up for: no bit of the eager run changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/parity.h"

namespace orthant::lazy_test {
namespace {

using test::experiment;
using test::Overrides;

const std::string host = "[plugins.offload]\nstates = \"host\"\n";
std::string lazy(const std::string& keys = "states = \"host\"\n") {
  return "[plugins.offload]\nexpert_states = \"lazy\"\n" + keys;
}

// Nine in ten experts are idle in a step: 12 tokens choose one of 120.
const Overrides idle = {"moe.experts=120", "moe.top_k=1",    "batch.sequences=1",          "model.layers=1",
                        "moe.d_expert=4",  "moe.aux_loss=0", "optimizer.weight_decay=0.1", "run.steps=1000"};

struct Layout {
  const char* name;
  Overrides overrides;
  std::string plugins;
  const char* device;
};
void PrintTo(const Layout& layout, std::ostream* out) {
  *out << layout.name;
}
class Lazy : public testing::TestWithParam<Layout> {};

TEST_P(Lazy, HasTheBitsOfTheEagerRun) {
  const auto& [name, overrides, plugins, device] = GetParam();
  const Overrides all = test::joined(test::joined(idle, {"moe.experts=40"}), overrides);
  constexpr int steps = 8;
  const Snapshot eager = take_snapshot(experiment(all, plugins), steps);
  for (const std::string& table : {lazy(), lazy("")}) {
    SCOPED_TRACE(table);
    Config config = experiment(all, plugins + table);
    config.settings.run.device = device;
    test::expect_same_bits(take_snapshot(config, steps), eager);
  }
}

const std::string data = "[plugins.data]\nsize = 2\n";
const Layout layouts[] = {
    {"one_rank", {}, "", "guarded"},
    {"bf16", {R"(run.dtype="bf16")"}, "", "late"},
    {"sgd_micro_batches", {R"(optimizer.name="sgd")", "batch.sequences=2", "batch.micro_batch=1"}, "", "late_sides"},
    {"averaged",
     {"optimizer.ema_decay=0.9", R"(optimizer.lr_of=["*.experts.?.*", "*.w2.weight"])", "optimizer.lr_scales=[3, 0.5]",
      R"(optimizer.no_decay=["*.experts.1?.*"])"},
     "",
     "late"},
    {"partly_frozen", {R"(train.freeze=["*.experts.?.w1.*"])"}, "", "guarded"},
    {"recompute_clipped", {R"(memory.recompute="full")", "optimizer.clip_grad_norm=0.05"}, "", "late"},
    {"replicas", {"batch.sequences=2"}, data, "late"},
    {"expert", {"batch.sequences=2"}, data + "[plugins.expert]\nsize = 2\n", "guarded"},
    {"zero_3_expert",
     {"batch.sequences=2"},
     "[plugins.data]\nsize = 2\nzero = 3\nwhole_below = 0\n[plugins.expert]\nsize = 2\n",
     "late_sides"},
    {"tensor_pipeline",
     {"model.layers=2", "model.d_ff=8", "moe.d_expert=8"},
     "[plugins.tensor]\nsize = 2\n[plugins.pipeline]\nsize = 2\n",
     "cpu"},
};
// Groups of ranks are made in one order also where a stage has fewer of them.
const Layout three_stages = {
    "tied_over_three_stages", {"model.layers=3", "model.tie_embeddings=true"}, "[plugins.pipeline]\nsize = 3\n", "cpu"};
INSTANTIATE_TEST_SUITE_P(OffloadStages, Lazy, testing::Values(three_stages),
                         [](const auto& l) { return l.param.name; });
INSTANTIATE_TEST_SUITE_P(Offload, Lazy, testing::ValuesIn(layouts), [](const auto& l) { return l.param.name; });

using Values = std::map<std::string, std::vector<float>>;

struct Outcome {
  std::vector<double> losses;
  Values state;
  double moved = 0, idle = 0;  // bytes over the link of all steps; the mean share of idle experts
};

Outcome train(const std::string& plugins, int steps) {
  test::OneRank rank(experiment(idle, plugins));
  Outcome outcome;
  for (int step = 0; step < steps; ++step) {
    const StepReport report = rank->trainer().step(step);
    outcome.losses.push_back(report.loss);
    outcome.moved += report.metrics.at("offload.to_host_bytes") + report.metrics.at("offload.to_device_bytes");
    double chosen = 0;
    for (std::int64_t load : report.layers.front().load) {
      chosen += load > 0 ? 1 : 0;
    }
    outcome.idle += (1 - chosen / static_cast<double>(report.layers.front().load.size())) / steps;
  }
  for (const std::string& name : rank->names()) {
    outcome.state["weight/" + name] = rank->weight(name);
    for (const char* moment : {"moment1", "moment2"}) {
      outcome.state[std::string(moment) + "/" + name] = rank->state(moment, name);
    }
  }
  return outcome;
}

TEST(LazyExperts, AThousandStepsAtNineInTenIdleExperts) {
  const Outcome eager = train(host, 1000), put_off = train(lazy(), 1000);
  EXPECT_GT(eager.idle, 0.9);
  EXPECT_EQ(put_off.losses, eager.losses);
  for (const auto& [name, values] : eager.state) {
    EXPECT_TRUE(test::same_bits(values, put_off.state.at(name))) << name;
  }
  // Of the routed experts' traffic; the dense parameters' is the same in both.
  double dense = 0;
  {
    test::OneRank rank(experiment(idle, host));
    for (const auto& group : rank->trainer().parameters().groups()) {
      dense += group->experts ? 0.0 : 8.0 * static_cast<double>(group->elements) * 1000;
    }
  }
  EXPECT_LT(put_off.moved - dense, 0.15 * (eager.moved - dense));
}

TEST(LazyExperts, WhatCannotBePutOffIsRefused) {
  using testing::HasSubstr;
  const std::string zero = "[plugins.data]\nsize = 2\nzero = 1\n";
  // Though the first stage has no expert.
  EXPECT_THAT(test::refusal({"model.layers=3", "moe.every=3"}, "[plugins.pipeline]\nsize = 2\n" + zero + lazy()),
              HasSubstr("ranks share out the states of 'layer 2 experts'"));
  EXPECT_THAT(test::refusal({}, zero + lazy()), HasSubstr("ranks share out the states of 'layer 0 experts'"));
  EXPECT_THAT(test::refusal({R"(optimizer.name="muon")"}, lazy("")), HasSubstr("cannot make up for updates of"));
  EXPECT_THAT(test::refusal({}, lazy("states = \"nvme\"\n")), HasSubstr("move a layer at a time"));
  EXPECT_THAT(test::refusal({}, lazy("weights = \"host\"\n")), HasSubstr("move a layer at a time"));
}

}  // namespace
}  // namespace orthant::lazy_test
