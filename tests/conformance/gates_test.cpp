// The conformance suite's checks of gates: the core's pass, a plugin's passes, and each mistake fails with its reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/check/child.h"
#include "apps/check/conformance.h"
#include "apps/check/gate_checks.h"
#include "tests/support/experiment.h"
#include "tests/support/paths.h"

namespace orthant::gates_test {
namespace {

using test::experiment;
using test::Overrides;
using testing::HasSubstr;

std::string text_of(const Finding& finding) {
  return fmt::format("{}: {} {}", finding.check, name_of(finding.outcome), finding.detail);
}

TEST(GateChecks, TheCoresGatesPass) {
  const Overrides cases[] = {{R"(moe.router="switch")"},
                             {R"(moe.router="gshard")"},
                             {R"(moe.router="topk")"},
                             {R"(moe.router="topk")", R"(moe.score="sigmoid")", "moe.normalize_weights=false"},
                             {R"(moe.router="topk")", "moe.expert_groups=4", "moe.groups_per_token=2"},
                             {R"(moe.router="expert_choice")", "moe.capacity_factor=1.5"},
                             {R"(moe.router="bias")"},
                             {R"(moe.router="bias")", R"(moe.score="sigmoid")", "moe.expert_groups=2"}};
  for (const Overrides& overrides : cases) {
    const Config config = experiment(test::joined({"moe.experts=8", "moe.top_k=0"}, overrides));
    const Finding found = check_gate(config.settings);
    EXPECT_EQ(found.outcome, Outcome::ok) << text_of(found);
    EXPECT_EQ(found.detail.find("state") != std::string::npos, config.settings.moe.router == "bias");
  }
}

std::string gate_plugin(const std::string& keys) {
  return fmt::format("[plugins.rude_gate]\npath = \"{}/liborthant_plugin_rude_gate.so\"\n{}",
                     paths::build("tests/conformance"), keys);
}

struct Fault {
  const char* fault;
  const char* says;
};
void PrintTo(const Fault& fault, std::ostream* out) {
  *out << fault.fault;
}
class RudeGate : public testing::TestWithParam<Fault> {};

TEST_P(RudeGate, IsFoundOut) {
  const Config config = experiment({R"(moe.router="rude")", "moe.experts=8"},
                                   gate_plugin(fmt::format("fault = \"{}\"\n", GetParam().fault)));
  std::string told;
  try {
    told = in_child([&] { return text_of(check_gate(config.settings)); }, 60);
  } catch (const Error& error) {
    told = error.what();
  }
  EXPECT_THAT(told, HasSubstr(GetParam().says));
}

const Fault faults[] = {
    {"none", "gate rude: ok choices, gradient, state"},
    {"range", "FAILED choice 0 of token 0 is expert -2 of 8"},
    {"twice", "FAILED token 0 has expert"},
    {"padding", "FAILED token 4 is padding, and its choice 0 is expert"},
    {"weight", "FAILED choice 0 of token 4, expert -1, has the weight 0.5"},
    {"counts", "FAILED chosen of expert"},
    {"unwritten", "FAILED choose leaves elements of its outputs unwritten"},
    {"gradient", "FAILED backward gives"},
    {"state", "FAILED the same state and load update to different states"},
    {"nan", "FAILED a step that is not finite"},
    {"undeclared", "it crashed: Segmentation fault"},
    {"host", "the meta device holds no data"},
};
INSTANTIATE_TEST_SUITE_P(Conformance, RudeGate, testing::ValuesIn(faults),
                         [](const auto& fault) { return std::string(fault.param.fault); });

const Finding& finding(const ConformanceReport& report, const std::string& check) {
  for (const Finding& f : report.findings) {
    if (f.check == check) {
      return f;
    }
  }
  throw std::runtime_error("no check " + check);
}

// The whole suite, with the plugin's gate in the experiment.
TEST(GateChecks, TheHashGatePassesTheSuite) {
  const ConformanceReport report = check_plugin(paths::out_of_tree("hash_gate"), {});
  for (const Finding& f : report.findings) {
    EXPECT_NE(f.outcome, Outcome::failed) << text_of(f);
  }
  EXPECT_EQ(finding(report, "gate hash: contract").outcome, Outcome::ok);
  EXPECT_EQ(finding(report, "parity").outcome, Outcome::ok);
}

TEST(GateChecks, TheSuiteReportsAGate) {
  const ConformanceReport report = check_plugin(paths::build("tests/conformance/liborthant_plugin_rude_gate.so"),
                                                {"plugins.rude_gate.fault=\"gradient\""}, "gate rude: contract");
  EXPECT_FALSE(report.ok());
  EXPECT_THAT(finding(report, "gate rude: contract").detail, HasSubstr("backward gives"));
}

}  // namespace
}  // namespace orthant::gates_test
