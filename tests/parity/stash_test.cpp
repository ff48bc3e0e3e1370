// Activations in the host's memory (examples/plugins/activation_offload.cpp): no bit changes, on any device, under any
// schedule, and with another stash before or behind it. Calls come as begin_step has announced them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/check/conformance.h"
#include "tests/support/parity.h"
#include "tests/support/paths.h"

namespace orthant::stash_test {
namespace {

using test::experiment;
using test::Overrides;

std::string offload(const std::string& keys) {
  return fmt::format("[plugins.activation_offload]\npath = \"{}\"\nleast_bytes = 0\n{}",
                     paths::out_of_tree("activation_offload"), keys);
}
const std::string announced =
    fmt::format("[plugins.announced]\npath = \"{}\"\n", paths::build("tests/parity/liborthant_plugin_announced.so"));

struct StashLayout {
  const char* name;
  Overrides overrides;
  std::string plugins;
};
void PrintTo(const StashLayout& layout, std::ostream* out) {
  *out << layout.name;
}
class StashParity : public testing::TestWithParam<StashLayout> {};

TEST_P(StashParity, HasTheBitsOfTheLayoutWithout) {
  const StashLayout& layout = GetParam();
  const Snapshot without = take_snapshot(experiment(layout.overrides, layout.plugins), 2);
  const std::pair<const char*, std::string> stashes[] = {
      {"cpu", offload("") + announced},
      {"guarded", offload("ahead = 3\n")},
      {"late", announced + offload("ahead = 0\n")},
      {"late", offload("ahead = 2\n")},
      {"late_sides", offload("")},
  };
  for (const auto& [device, tables] : stashes) {
    SCOPED_TRACE(fmt::format("{}\n{}", device, tables));
    Config config = experiment(layout.overrides, layout.plugins + tables);
    config.settings.run.device = device;
    test::expect_same_bits(take_snapshot(config, 2), without);
  }
}

const std::string all_axes =
    "[plugins.pipeline]\nsize = 2\n[plugins.data]\nsize = 2\nzero = 3\nwhole_below = 0\n[plugins.tensor]\nsize = 2\n"
    "[plugins.expert]\nsize = 2\n";
const StashLayout layouts[] = {
    {"one_rank", {"batch.micro_batch=4"}, ""},
    {"recompute", {"memory.recompute=\"full\"", "model.dropout=0.1"}, "[plugins.data]\nsize = 2\n"},
    {"bf16", {"run.dtype=\"bf16\""}, "[plugins.tensor]\nsize = 2\nsequence_parallel = true\n"},
    {"gpipe", {"model.layers=3", "batch.micro_batch=2"}, "[plugins.pipeline]\nsize = 2\nschedule = \"gpipe\"\n"},
    {"one_forward_one_backward", {"model.layers=3", "batch.micro_batch=1"}, "[plugins.pipeline]\nsize = 2\n"},
    {"interleaved",
     {"model.layers=4", "batch.micro_batch=2"},
     "[plugins.pipeline]\nsize = 2\nschedule = \"interleaved\"\nchunks = 2\n"},
    {"layered", {"batch.micro_batch=2"}, "[plugins.data]\nsize = 2\nzero = 3\nwhole_below = 0\nlayered = true\n"},
    {"ring", {"moe.experts=0", "data.sequence_length=16"}, "[plugins.sequence]\nsize = 2\nmethod = \"ring\"\n"},
    {"pipeline_zero_tensor_expert", {"model.layers=3", "batch.micro_batch=2"}, all_axes},
};
INSTANTIATE_TEST_SUITE_P(Parity, StashParity, testing::ValuesIn(layouts),
                         [](const auto& layout) { return layout.param.name; });

TEST(Stash, ALayoutWithItEqualsOneRank) {
  const VerifyReport report =
      verify(experiment({"model.layers=3", "batch.micro_batch=2"}, all_axes + offload("ahead = 2\n")), 3);
  EXPECT_TRUE(report.ok()) << test::differences(report);
}

TEST(Stash, TheSuitePassesIt) {
  const ConformanceReport report =
      check_plugin(paths::out_of_tree("activation_offload"), {"plugins.activation_offload.least_bytes=0"});
  for (const Finding& finding : report.findings) {
    EXPECT_NE(finding.outcome, Outcome::failed) << finding.check << ": " << finding.detail;
  }
}

TEST(Stash, TheDeviceHoldsLess) {
  const Overrides deep = {"moe.experts=0", "model.layers=8", "batch.sequences=32"};
  const auto peak = [&](const std::string& tables) {
    test::OneRank rank(experiment(deep, tables));
    rank->trainer().step(0);
    rank->stream().device().reset_peak();
    rank->trainer().step(1);
    return std::pair{rank->stream().device().memory().peak_bytes, rank->stream().device().host_memory().peak_bytes};
  };
  const auto plain = peak(""), away = peak(offload(""));
  EXPECT_EQ(plain.second, 0);
  EXPECT_GT(away.second, 0);
  EXPECT_LT(static_cast<double>(away.first), 0.7 * static_cast<double>(plain.first));
}

}  // namespace
}  // namespace orthant::stash_test
