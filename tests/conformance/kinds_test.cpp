// The conformance suite on parts, sources and hooks: those out of tree pass, and each planted mistake fails the check
// that is meant for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/check/conformance.h"
#include "tests/support/paths.h"

namespace orthant::kinds_test {
namespace {

using testing::HasSubstr;

const Finding* finding(const ConformanceReport& report, const std::string& check) {
  for (const Finding& f : report.findings) {
    if (f.check == check) {
      return &f;
    }
  }
  return nullptr;
}

struct Example {
  const char* plugin;
  std::vector<const char*> checks;
};
void PrintTo(const Example& example, std::ostream* out) {
  *out << example.plugin;
}
class Kinds : public testing::TestWithParam<Example> {};

TEST_P(Kinds, OfAPluginOutOfTreePass) {
  const ConformanceReport report = check_plugin(paths::out_of_tree(GetParam().plugin), {});
  for (const Finding& f : report.findings) {
    EXPECT_NE(f.outcome, Outcome::failed) << f.check << ": " << f.detail;
  }
  for (const char* check : GetParam().checks) {
    ASSERT_NE(finding(report, check), nullptr) << check;
    EXPECT_EQ(finding(report, check)->outcome, Outcome::ok) << check;
  }
}

const Example examples[] = {
    {"gated_unit",
     {"ffn gated_unit: parity", "ffn gated_unit: guarded", "ffn gated_unit: parameters", "ffn gated_unit: gradients",
      "ffn gated_unit: recompute"}},
    {"arithmetic", {"source arithmetic: parity", "source arithmetic: guarded", "source arithmetic: sequences"}},
    {"focal",
     {"objective focal: parity", "objective focal: guarded", "objective focal: gradients", "objective focal: figures",
      "parity"}},
    {"reminded",
     {"model reminded: parity", "model reminded: guarded", "model reminded: gradients", "model reminded: recompute",
      "parity"}},
    {"spike_watcher", {"hook spike_watcher: ranks", "hook spike_watcher: restore"}},
    {"capacity_schedule", {"hook capacity_schedule: ranks", "hook capacity_schedule: restore"}},
};
INSTANTIATE_TEST_SUITE_P(Conformance, Kinds, testing::ValuesIn(examples),
                         [](const auto& example) { return example.param.plugin; });

// Central differences across a kink are no derivative: smaller steps are tried there.
TEST(KindsAtTheirEdges, KinksAreNoWrongGradient) {
  const ConformanceReport report = check_plugin(paths::out_of_tree("gated_unit"), {"plugins.gated_unit.fault=\"relu\""},
                                                "ffn gated_unit: gradients");
  ASSERT_NE(finding(report, "ffn gated_unit: gradients"), nullptr);
  EXPECT_EQ(finding(report, "ffn gated_unit: gradients")->outcome, Outcome::ok)
      << finding(report, "ffn gated_unit: gradients")->detail;
}

struct Fault {
  const char *plugin, *fault, *check, *says;
};
void PrintTo(const Fault& fault, std::ostream* out) {
  *out << fault.plugin << " " << fault.fault;
}
class FaultOfAKind : public testing::TestWithParam<Fault> {};

TEST_P(FaultOfAKind, FailsTheCheckThatIsMeantForIt) {
  const Fault& fault = GetParam();
  const ConformanceReport report =
      check_plugin(paths::out_of_tree(fault.plugin),
                   {fmt::format("plugins.{}.fault=\"{}\"", fault.plugin, fault.fault)}, fault.check);
  const Finding* found = finding(report, fault.check);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->outcome, Outcome::failed) << found->detail;
  EXPECT_THAT(found->detail, HasSubstr(fault.says));
}

const Fault faults[] = {
    {"gated_unit", "twice", "ffn gated_unit: parameters", "two parameters have the name"},
    {"gated_unit", "free", "ffn gated_unit: parameters", "a token costs 0 operations"},
    {"gated_unit", "no_product", "ffn gated_unit: gradients", "but the loss changes by"},
    {"gated_unit", "no_leave", "ffn gated_unit: parity", "tensor"},
    {"gated_unit", "whole", "ffn gated_unit: parity", "tensor"},
    {"gated_unit", "nothing", "ffn gated_unit: parity", "FFN part 'gated_unit' makes no layer for block 0"},
    {"arithmetic", "order", "source arithmetic: sequences", "is another one"},
    {"arithmetic", "nothing", "source arithmetic: sequences", "source 'arithmetic' opens nothing"},
    {"arithmetic", "range", "source arithmetic: sequences", "token 20 is outside its vocabulary of 13"},
    {"focal", "slope", "objective focal: gradients", "but the loss changes by"},
    {"focal", "own_columns", "objective focal: parity", "tensor"},
    {"focal", "few_rows", "objective focal: gradients", "has learned from 0 of"},
    {"focal", "figure", "objective focal: figures", "an objective reports a figure 'grad_norm'"},
    {"focal", "told", "objective focal: figures", "an objective failed to tell its figures of a step"},
    {"focal", "undeclared", "objective focal: guarded", "is not applied"},
    {"reminded", "forgets", "model reminded: gradients", "but the loss changes by"},
    {"spike_watcher", "own_way", "hook spike_watcher: ranks", "on ranks 0 and 1"},
    {"spike_watcher", "forgets", "hook spike_watcher: restore", "saved after step 1"},
};
INSTANTIATE_TEST_SUITE_P(Conformance, FaultOfAKind, testing::ValuesIn(faults),
                         [](const auto& fault) { return fmt::format("{}_{}", fault.param.plugin, fault.param.fault); });

}  // namespace
}  // namespace orthant::kinds_test
