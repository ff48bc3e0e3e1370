// The conformance suite: every plugin of the tree passes, and each way to misbehave fails the check that is meant for
// it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/optimizer.h>

#include <nlohmann/json.hpp>

#include <algorithm>

#include "apps/check/child.h"
#include "apps/check/conformance.h"
#include "apps/check/layout_checks.h"
#include "apps/check/optimizer_checks.h"
#include "tests/support/experiment.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::conformance_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string in_tree(const std::string& name) {
  return paths::plugin("liborthant_plugin_" + name + ".so");
}
std::string rude(const std::string& name = "rude") {
  return paths::build("tests/conformance/liborthant_plugin_" + name + ".so");
}

const Finding& finding(const ConformanceReport& report, const std::string& check) {
  for (const Finding& f : report.findings) {
    if (f.check == check) {
      return f;
    }
  }
  throw std::runtime_error("no check " + check);
}

std::string failures(const ConformanceReport& report) {
  std::string text;
  for (const Finding& f : report.findings) {
    if (f.outcome == Outcome::failed) {
      text += f.check + ": " + f.detail + "\n";
    }
  }
  return text;
}

// --- every plugin of the tree, with every value of its keys that makes another plugin of it

struct Plugin {
  const char* name;
  const char* test;
  std::vector<std::string> overrides = {};
};
void PrintTo(const Plugin& plugin, std::ostream* out) {
  *out << plugin.test;
}

class InTree : public testing::TestWithParam<Plugin> {};

TEST_P(InTree, Passes) {
  const ConformanceReport report = check_plugin(in_tree(GetParam().name), GetParam().overrides);
  EXPECT_EQ(failures(report), "");
  EXPECT_EQ(report.plugin, GetParam().name);
  EXPECT_EQ(finding(report, "parity").outcome, Outcome::ok);
  EXPECT_EQ(finding(report, "guarded").outcome, Outcome::ok);
}

const Plugin plugins[] = {
    {"data", "data"},
    {"data", "data_zero3", {"plugins.data.zero=3", "plugins.data.whole_below=0"}},
    {"expert", "expert"},
    {"template", "template_of_factor_1"},
    {"pipeline", "pipeline_1f1b"},
    {"pipeline", "pipeline_interleaved", {"plugins.pipeline.schedule=\"interleaved\"", "plugins.pipeline.chunks=2"}},
    {"sequence", "sequence_ulysses"},
    {"sequence", "sequence_ring", {"plugins.sequence.method=\"ring\""}},
    {"tensor", "tensor_split"},
    {"tensor", "tensor_fold", {"plugins.tensor.experts=\"fold\""}},
    {"tensor", "tensor_sequence_parallel", {"plugins.tensor.sequence_parallel=true"}},
    {"tensor",
     "tensor_sequence_parallel_fold",
     {"plugins.tensor.sequence_parallel=true", "plugins.tensor.experts=\"fold\""}},
};
INSTANTIATE_TEST_SUITE_P(Conformance, InTree, testing::ValuesIn(plugins),
                         [](const auto& plugin) { return plugin.param.test; });

// The axis that docs/guides/plugins.md prints is this file, word for word, and it works.
TEST(Conformance, TheAxisOfTheGuidePasses) {
  const std::string guide = launch_test::read_file(paths::source("docs/guides/plugins.md"));
  EXPECT_THAT(
      guide, HasSubstr("```cpp\n" + launch_test::read_file(paths::source("tests/conformance/channels.cpp")) + "```\n"));
  EXPECT_LT(std::count(guide.begin(), guide.end(), '\n'), 501);
  const ConformanceReport report = check_plugin(rude("channels"), {});
  EXPECT_EQ(failures(report), "");
  EXPECT_EQ(finding(report, "boundaries").outcome, Outcome::ok);
}

TEST(Conformance, WhatIsBoundIsLookedAt) {
  const auto found = [](const char* plugin, const char* check) {
    return finding(check_plugin(in_tree(plugin), {}, check), check);
  };
  EXPECT_EQ(found("expert", "exchange").outcome, Outcome::ok);
  EXPECT_THAT(found("expert", "exchange").detail, HasSubstr("size 4 below data 4"));
  EXPECT_EQ(found("expert", "boundaries").outcome, Outcome::skipped);
  EXPECT_THAT(found("template", "claims").detail, HasSubstr("alone: 1 rank"));
}

// --- each fault fails its check, and says why

struct Fault {
  const char* fault;
  const char* check;
  const char* says;
};
void PrintTo(const Fault& fault, std::ostream* out) {
  *out << fault.fault;
}
class Rude : public testing::TestWithParam<Fault> {};

TEST_P(Rude, FailsTheCheckThatIsMeantForIt) {
  const Fault& fault = GetParam();
  const ConformanceReport report =
      check_plugin(rude(), {fmt::format("plugins.rude.fault=\"{}\"", fault.fault)}, fault.check);
  EXPECT_FALSE(report.ok());
  EXPECT_EQ(finding(report, fault.check).outcome, Outcome::failed) << finding(report, fault.check).detail;
  EXPECT_THAT(finding(report, fault.check).detail, AllOf(HasSubstr("size 2"), HasSubstr(fault.says)));
}

const Fault faults[] = {
    {"claims", "claims", "its key 'size' is 2, but its axis has 4 ranks"},
    {"crash", "claims", "it crashed: Aborted"},
    {"boundary", "boundaries", "entering attention: <f(x), y> ="},
    {"boundary", "parity", "gradient of step 1"},
    {"order", "order", "with another operator"},
    {"alone", "order", "only 1 of the 2 members of group rude"},
    {"unguarded", "guarded", "it crashed: Segmentation fault"},
    {"unstable", "repeats", "differs in some bit"},
    {"stash_put", "late", "streams are late"},
    {"stash_take", "late", "when side streams are late"},
    {"throws", "boundaries", "plugin 'rude' failed to cross a boundary: map::at"},
    {"number", "boundaries", "plugin 'rude' failed to cross a boundary: it threw what is no std::exception"},
    {"forgets", "resume", "belongs in Keeper::state"},
    {"waits", "parity", "below pipeline 2: training stops"},
    {"greedy", "parity", "above data 2: gradient of step 1"},
    {"memory", "leaks", "bytes of the device"},
    {"thread", "leaks", "2 threads more than before"},
};
INSTANTIATE_TEST_SUITE_P(Conformance, Rude, testing::ValuesIn(faults),
                         [](const auto& fault) { return fmt::format("{}_{}", fault.param.fault, fault.param.check); });

// The message says where it belongs, since nothing hangs that could tell.
TEST(Conformance, WaitingForAnotherStageIsRefused) {
  const ConformanceReport report = check_plugin(rude(), {"plugins.rude.fault=\"waits\""}, "repeats");
  EXPECT_THAT(
      finding(report, "repeats").detail,
      AllOf(HasSubstr("plugin 'rude', grad_ready: all_reduce of group 'sum of gradients, stages 0 1' on the main "
                      "stream while layers run"),
            HasSubstr("Keeper::finish_sums")));
}

// --- plugins that change the mathematics on purpose, built out of tree

TEST(Conformance, PluginsWithStateAndWorkers) {
  const ConformanceReport topk = check_plugin(paths::out_of_tree("topk_sums"), {});
  EXPECT_EQ(failures(topk), "");
  EXPECT_THAT(finding(topk, "layouts").detail,
              AllOf(HasSubstr("alone; above data 2; below pipeline 2"), HasSubstr("below data 2 is refused")));
  EXPECT_EQ(finding(topk, "resume").outcome, Outcome::ok);
  EXPECT_EQ(finding(topk, "parity").outcome, Outcome::skipped) << "each rank chooses for itself";
  EXPECT_EQ(failures(check_plugin(paths::out_of_tree("topk_sums"), {"plugins.topk_sums.density=1.0"})), "");
  const ConformanceReport workers = check_plugin(paths::out_of_tree("local_sgd"), {"plugins.local_sgd.every=2"});
  EXPECT_EQ(failures(workers), "");
  EXPECT_THAT(finding(workers, "parity").detail, HasSubstr("size 2 above data 2"))
      << "workers are compared with themselves";
}

TEST(Conformance, AnotherMathematicsIsComparedWithItself) {
  const ConformanceReport half = check_plugin(in_tree("template"), {"plugins.template.factor=0.5"});
  EXPECT_EQ(failures(half), "");
  EXPECT_THAT(finding(half, "parity").detail, HasSubstr("below data 2"));
}

TEST(Conformance, APluginWithoutAFaultPassesBesideThem) {
  EXPECT_EQ(failures(check_plugin(rude(), {})), "");
}

// All but `late` pass what is wrong on asynchronous devices only.
TEST(Conformance, AStashIsJudgedByLateStreams) {
  EXPECT_EQ(failures(check_plugin(rude(), {"plugins.rude.fault=\"stash\""})), "");
  for (const char* check : {"parity", "guarded", "late"}) {
    const ConformanceReport wrong = check_plugin(rude(), {"plugins.rude.fault=\"stash_put\""}, check);
    EXPECT_EQ(finding(wrong, check).outcome, check == std::string("late") ? Outcome::failed : Outcome::ok);
  }
}

// What it does is what "rude" does; only its keys are looked at here.
TEST(Conformance, KeysNeedHelp) {
  const ConformanceReport report = check_plugin(rude("rude_keys"), {}, "claims");
  EXPECT_EQ(failures(report), "keys: key 'fault' has no help\n");
}

TEST(Conformance, WhatDoesNotLoad) {
  const ConformanceReport report = check_plugin("/nowhere/liborthant_plugin_x.so", {});
  EXPECT_FALSE(report.ok());
  EXPECT_THAT(finding(report, "loads").detail, HasSubstr("/nowhere/liborthant_plugin_x.so"));
  EXPECT_EQ(report.findings.size(), 1u);
}

TEST(Conformance, WrongOverridesAreTheUsersMistake) {
  EXPECT_THROW(check_plugin(rude(), {"plugins.rude.falt=1"}), ConfigError);
  EXPECT_THAT([] { check_plugin(rude("rude_keys"), {}, "latte"); },
              testing::ThrowsMessage<ConfigError>(HasSubstr("has no check 'latte'. The checks are: claims, ")));
}

// --- optimizers

class RudeOptimizer : public testing::TestWithParam<Fault> {};

TEST_P(RudeOptimizer, FailsItsCheck) {
  const auto& [fault, check, says] = GetParam();
  const ConformanceReport report =
      check_plugin(rude("rude_optimizer"), {fmt::format("plugins.rude_optimizer.fault=\"{}\"", fault)}, check);
  EXPECT_FALSE(report.ok());
  EXPECT_EQ(finding(report, check).outcome, Outcome::failed) << finding(report, check).detail;
  EXPECT_THAT(finding(report, check).detail, HasSubstr(says));
}

const Fault faults_of_optimizers[] = {
    {"slices", "optimizer rude: contract", "after an update in slices are not those of one update"},
    {"nan", "optimizer rude: contract", "a step whose factor is NaN changes the weights"},
    {"remembers", "optimizer rude: contract", "it keeps state that it does not name"},
    {"negative", "optimizer rude: contract", "state 'speed' is negative"},
    {"stale", "optimizer rude: contract", "the weights in bf16 are not the updated weights, rounded"},
    {"measures", "optimizer rude: contract", "in step 1 state 'size' after an update in slices"},
    {"folds", "optimizer rude: contract", "a step whose factor is NaN changes state 'size'"},
    {"names", "optimizer rude: contract", "optimizer 'rude' has two states 'speed'"},
    {"unclipped", "optimizer rude: contract", "differ from those of a gradient that was multiplied by *factor"},
    {"moody", "optimizer rude: contract", "now in one way, now in another"},
    {"forgets", "optimizer rude: contract", "after a replay are not those of its steps with a gradient of zeros"},
    {"promises", "optimizer rude: contract", "says that it replays updates (Treatment::replays) and has no `replay`"},
    {"both", "optimizer rude: contract", "as a whole and says that it replays updates"},
    {"unguarded", "optimizer rude: contract", "it crashed: Segmentation fault"},
};
INSTANTIATE_TEST_SUITE_P(Conformance, RudeOptimizer, testing::ValuesIn(faults_of_optimizers),
                         [](const auto& fault) { return fault.param.fault; });

TEST(Conformance, OptimizersWithoutAFaultPass) {
  EXPECT_EQ(failures(check_plugin(rude("rude_optimizer"), {})), "");
  const ConformanceReport lion = check_plugin(paths::out_of_tree("lion"), {});
  EXPECT_EQ(failures(lion), "");
  EXPECT_EQ(finding(lion, "optimizer lion: contract").outcome, Outcome::ok);
  EXPECT_EQ(finding(lion, "parity").outcome, Outcome::ok);
  for (const std::string name : {"adafactor", "lamb"}) {
    EXPECT_EQ(failures(check_plugin(paths::out_of_tree(name), {})), "") << name;
  }
}

// What comes with Orthant passes too, with each way in which it treats a parameter.
TEST(Conformance, BuiltInOptimizersPass) {
  const Config config = test::experiment(), again = test::experiment();
  for (const std::string& name : config.settings.catalogue->names<Optimizer>()) {
    const Finding found = check_optimizer(config, again, name);
    EXPECT_EQ(found.outcome, Outcome::ok) << name << ": " << found.detail;
  }
}

// A token exchange that loses its rows' order, or its gradient.
TEST(Conformance, Exchange) {
  auto detail = [](const char* fault) {
    const std::string broken = fmt::format(
        "[plugins.broken_expert]\npath = \"{}/liborthant_plugin_broken_expert.so\"\nsize = 4\nfault = \"{}\"\n",
        paths::build("tests/parity"), fault);
    const Finding found = check_exchange(test::experiment({}, test::axes(4) + broken));
    return fmt::format("{} {}", name_of(found.outcome), found.detail);
  };
  EXPECT_EQ(detail("none"), "ok ");
  EXPECT_THAT(detail("swapped"), HasSubstr("FAILED"));
  EXPECT_THAT(detail("shuffled"), HasSubstr("FAILED"));
  EXPECT_THAT(detail("no_gradient"), HasSubstr("FAILED"));
}

// --- a check in a process of its own

TEST(Child, AnswersThrowsCrashesOrIsEnded) {
  EXPECT_EQ(in_child([] { return std::string(100000, 'x'); }, 10), std::string(100000, 'x'));
  auto failure = [](const std::function<std::string()>& body) {
    try {
      in_child(body, 1);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(failure([]() -> std::string { throw Error("a reason"); }), "a reason");
  EXPECT_EQ(failure([]() -> std::string { std::abort(); }), "it crashed: Aborted");
  EXPECT_EQ(failure([]() -> std::string { _exit(3); }), "its process ended without a word (exit code 3)");
  EXPECT_EQ(failure([]() -> std::string {
              for (;;) {
                pause();
              }
            }),
            "it did not end within 1 seconds");
}

// --- the program

TEST(Conformance, TheProgramPrintsALineForEachCheck) {
  const run_test::ProgramFolder folder;
  const run_test::Result good = folder.orthant({"plugins", "--check", in_tree("data")});  // all checks
  EXPECT_EQ(good.code, 0) << good.error;
  EXPECT_THAT(good.output, AllOf(HasSubstr("ok       parity      size 2; size 4; size 2 below pipeline 2\n"),
                                 HasSubstr("skipped  exchange    it binds none\n")));
  const std::vector<std::string> set = {"plugins.rude.fault=\"boundary\""};
  const run_test::Result bad =
      folder.orthant(run_test::with_set({"plugins", "--check", rude(), "--only", "boundaries"}, set));
  EXPECT_EQ(bad.code, 1);
  EXPECT_THAT(bad.output, HasSubstr("FAILED   boundaries  size 2: entering attention"));
  const run_test::Result json =
      folder.orthant(run_test::with_set({"plugins", "--check", rude(), "--only", "boundaries", "--json"}, set));
  EXPECT_EQ(json.code, 1);
  const auto parsed = nlohmann::json::parse(json.output);
  EXPECT_EQ(parsed.at("plugin"), "rude");
  EXPECT_EQ(parsed.at("ok"), false);
  EXPECT_EQ(parsed.at("checks").at(0).at("check"), "loads");
  EXPECT_EQ(parsed.at("checks").at(0).at("outcome"), "ok");
  EXPECT_EQ(folder.orthant(run_test::with_set({"plugins", "--check", rude()}, {"plugins.rude.falt=1"})).code, 78);
}

}  // namespace
}  // namespace orthant::conformance_test
