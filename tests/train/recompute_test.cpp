// memory.recompute trades time for memory and changes nothing else: every number is that of a run that keeps its
// activations, bit for bit, and nothing is decided or counted twice.
#include <gtest/gtest.h>

#include "apps/verify/verify.h"
#include "tests/support/experiment.h"

namespace orthant::recompute_test {
namespace {

using test::experiment;
using test::OneRank;
using test::Overrides;

Overrides with(Overrides overrides, const std::string& recompute) {
  overrides.push_back("memory.recompute=\"" + recompute + "\"");
  return overrides;
}

struct Model {
  const char* name;
  Overrides overrides;
  const char* plugins;
};

const Model models[] = {
    {"dense", {"moe.experts=0", "model.dropout=0.3"}, ""},
    {"gelu", {"moe.experts=0", R"(model.activation="gelu")", R"(model.norm="layernorm")"}, ""},
    {"routed",
     {"moe.capacity_factor=1.0", "moe.jitter=0.3", "model.dropout=0.3", "moe.shared_experts=1", "batch.micro_batch=2"},
     ""},
    {"gshard", {R"(moe.router="gshard")", "moe.capacity_factor=1.0"}, ""},
    {"ties", {R"(moe.router="switch")", "moe.top_k=1", "model.init_std=0"}, ""},
    {"expert_axis", {"moe.jitter=0.3"}, "[plugins.data]\nsize = 2\n[plugins.expert]\nsize = 2\n"},
    {"sequence_axis", {"moe.capacity_factor=1.0"}, "[plugins.sequence]\nsize = 2\n"},
    {"bf16", {R"(run.dtype="bf16")"}, ""},
};

class Recompute : public testing::TestWithParam<Model> {};

TEST_P(Recompute, ChangesNoBit) {
  const Model& model = GetParam();
  const Snapshot kept = take_snapshot(experiment(with(model.overrides, "none"), model.plugins), 2);
  for (const char* mode : {"selective", "full"}) {
    const Snapshot again = take_snapshot(experiment(with(model.overrides, mode), model.plugins), 2);
    EXPECT_EQ(again.gradients, kept.gradients) << mode;
    EXPECT_EQ(again.state, kept.state) << mode;
    for (std::size_t step = 0; step < kept.reports.size(); ++step) {
      const StepReport &a = again.reports[step], &b = kept.reports[step];
      EXPECT_EQ(a.loss, b.loss);
      EXPECT_EQ(a.aux_loss, b.aux_loss) << "added once";
      EXPECT_EQ(a.z_loss, b.z_loss);
      for (std::size_t i = 0; i < b.layers.size(); ++i) {
        EXPECT_EQ(a.layers[i].load, b.layers[i].load) << "counted once";
        EXPECT_EQ(a.layers[i].choices, b.layers[i].choices);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Recompute, testing::ValuesIn(models), [](const auto& m) { return m.param.name; });

std::int64_t peak(const Overrides& overrides) {
  OneRank rank(experiment(overrides));
  rank->trainer().step(0);
  Device& device = rank->session().plan().device();
  device.reset_peak();
  rank->trainer().step(1);
  return device.memory().peak_bytes - device.memory().current_bytes;
}

// Eight blocks of one width: keeping everything holds more than activations, and inputs alone hold less than either.
TEST(Recompute, SavesMemory) {
  const Overrides deep = {"moe.experts=0", "model.layers=8", "data.sequence_length=64", "model.d_ff=64"};
  const std::int64_t none = peak(with(deep, "none")), selective = peak(with(deep, "selective"));
  const std::int64_t full = peak(with(deep, "full"));
  const std::int64_t tokens = 8 * 64, activation = tokens * 64 * 4;  // [T, f] in bytes
  EXPECT_NEAR(static_cast<double>(none - selective), 8.0 * static_cast<double>(activation),
              1.5 * static_cast<double>(activation));
  EXPECT_LT(full, none / 3);
}

}  // namespace
}  // namespace orthant::recompute_test
