// Keys that a kind out of tree declares: read, shown, refused, remembered and compared as the core's are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/optimizer.h>

#include <nlohmann/json.hpp>

#include "apps/check/gate_checks.h"
#include "apps/config/keys_text.h"
#include "apps/verify/verify.h"
#include "core/command/arguments.h"
#include "core/config/print.h"
#include "core/run/remembered_settings.h"
#include "core/session/session.h"
#include "tests/support/error_of.h"
#include "tests/support/parity.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test::kind_keys_test {
namespace {

using test::experiment;
using test::Overrides;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const Overrides warm = {R"(moe.router="warm")", "moe.top_k=2"};

std::string table(const std::string& plugin) {
  return fmt::format("[plugins.{}]\npath = \"{}\"\n", plugin, paths::out_of_tree(plugin));
}

Config warmed(const Overrides& overrides = {}, const std::string& plugins = "") {
  return experiment(test::joined(warm, overrides), plugins + table("warm_gate"));
}

TEST(KindKeys, StandBesideTheCoresInEveryText) {
  const Config config = warmed({"moe.warmth=2.5"});
  EXPECT_EQ(kind_values(config.settings, "moe").at("warmth"), Value(2.5));
  EXPECT_THAT(resolved_toml(config), AllOf(HasSubstr("\nwarmth = 2.5 "), HasSubstr("\nscore = \"softmax\" ")));
  EXPECT_EQ(nlohmann::json::parse(resolved_json(config))["moe"]["warmth"], 2.5);
  const Catalogue& catalogue = *config.settings.catalogue;
  const std::string row = "| `warmth` | number | `1.0` | 0.01 to 100 | warm: what a token's logits are divided by. |\n";
  EXPECT_THAT(keys_markdown(catalogue), HasSubstr("| `score` | string | `\"softmax\"` | `softmax`, `sigmoid` | What a "
                                                  "token's logits become before experts are weighted; sigmoid: topk, "
                                                  "bias and expert_choice. |\n" +
                                                  row));
  const nlohmann::json schema = nlohmann::json::parse(schema_json({}, catalogue));
  EXPECT_EQ(schema["properties"]["moe"]["properties"]["warmth"]["maximum"], 100);
  // Who does not load the plugin has no such key.
  EXPECT_THAT(keys_markdown(), Not(HasSubstr("warmth")));
  EXPECT_THAT(test::refusal({"moe.warmth=2"}, ""), HasSubstr("unknown key 'warmth' in [moe]"));
}

TEST(KindKeys, AreRefusedAtTheirPlace) {
  EXPECT_THAT(test::refusal(test::joined(warm, {"moe.wramth=2"}), table("warm_gate")),
              AllOf(HasSubstr("--set:3:5: unknown key 'wramth' in [moe]"), HasSubstr("did you mean 'warmth'?")));
  EXPECT_THAT(test::refusal(test::joined(warm, {"moe.warmth=0"}), table("warm_gate")),
              HasSubstr("[moe] warmth: 0 is below the minimum 0.01"));
  EXPECT_THAT(test::refusal(test::joined(warm, {"moe.warmth=true"}), table("warm_gate")),
              HasSubstr("[moe] warmth: expected a number, found the boolean true"));
  EXPECT_THAT(test::refusal(test::joined(warm, {"moe.expert_groups=2"}), table("warm_gate")),
              HasSubstr("[moe] expert_groups: the warm gate knows no groups of experts"));
}

// As for the core's kinds, a key may be written whose kind is not chosen.
TEST(KindKeys, MayBeWrittenForAKindThatIsNotChosen) {
  const Config config = experiment({"moe.warmth=3"}, table("warm_gate"));
  EXPECT_EQ(config.settings.moe.router, "topk");
  EXPECT_EQ(kind_values(config.settings, "moe").at("warmth"), Value(3.0));
}

TEST(KindKeys, AreRememberedAndCompared) {
  const std::string before = remembered_settings(warmed({"moe.warmth=2"}));
  EXPECT_EQ(nlohmann::json::parse(before)["moe.warmth"], "2.0");
  EXPECT_THAT(changed_settings(warmed({"moe.warmth=2"}), before), ElementsAre());
  EXPECT_THAT(changed_settings(warmed({"moe.warmth=3"}), before), ElementsAre("moe.warmth = 3.0 (was 2.0)"));
  // Without the plugin nobody knows the key; the router is a key of the core.
  EXPECT_THAT(changed_settings(experiment({"moe.top_k=2"}), before),
              ElementsAre("moe.router = \"topk\" (was \"warm\")"));
}

std::vector<float> trained(const Config& config) {
  test::OneRank rank(config);
  for (int step = 0; step < 3; ++step) {
    rank->trainer().step(step);
  }
  return rank->weight("model.layers.0.block_sparse_moe.gate.weight");
}

TEST(KindKeys, ReachTheKind) {
  const std::vector<float> topk = trained(experiment({"moe.top_k=2"}));
  EXPECT_EQ(trained(warmed()), topk);
  EXPECT_NE(trained(warmed({"moe.warmth=2"})), topk);
}

// Weights, losses and their gradients against what gate.h promises, and a layout against one rank.
TEST(KindKeys, TheGateKeepsItsContract) {
  const Finding found = check_gate(warmed({"moe.warmth=2.5"}).settings);
  EXPECT_EQ(found.outcome, Outcome::ok) << found.detail;
  const VerifyReport report = verify(warmed({"moe.warmth=0.5"}, test::axes(2, 2)), 2);
  EXPECT_TRUE(report.ok()) << test::differences(report);
}

// An optimizer out of tree reads keys that the core's declare too: one value for both.
TEST(KindKeys, MayBeSharedWithTheCoresKinds) {
  const auto moved = [](const Overrides& overrides) {
    return trained(experiment(test::joined({R"(optimizer.name="lamb")"}, overrides), table("lamb")));
  };
  EXPECT_NE(moved({}), moved({"optimizer.betas=[0.5, 0.6]"}));
  EXPECT_THAT(test::refusal({R"(optimizer.name="lamb")", "optimizer.betas=[0.5, 1.0]"}, table("lamb")),
              HasSubstr("[optimizer] betas: 0.5 and 1 are not both between 0 and 1"));
}

// A command that runs no code of the file's shows what it cannot check.
TEST(KindKeys, OfAPluginThatIsNotAskedAreShownAsWritten) {
  const auto written = [](const std::string& key) {
    const ProgramFolder folder;
    folder.write("main.toml", "[data]\nsource = \"synthetic\"\n[moe]\nexperts = 4\nrouter = \"warm\"\n" + key +
                                  " = 2\n[plugins.warm_gate]\npath = \"nowhere.so\"\n");
    return load_config_only({.file = folder.path("main.toml").string(), .overrides = {}});
  };
  EXPECT_THAT(resolved_toml(written("warmth")), HasSubstr("\nwarmth = 2 "));
  EXPECT_THAT(test::error_of([&] { written("top_q"); }), HasSubstr("did you mean 'top_k'?"));
}

// --- declared wrongly

class Declares final : public Optimizer {
 public:
  explicit Declares(KindKey key) : key_(std::move(key)) {}
  std::vector<KindKey> keys() const override { return {key_}; }
  Treatment treatment(const ParamSpec&, const OptimizerSettings&) const override { return {}; }
  void update(const UpdateSlice&, const UpdateStep&, Stream&) const override {}

 private:
  KindKey key_;
};

std::string refused(const KindKey& key) {
  const ProgramFolder folder;
  folder.write("main.toml", "[data]\nsource = \"synthetic\"\n[plugins.mine]\n");
  return test::error_of([&] {
    load_config(
        folder.path("main.toml").string(), {}, [](const PluginRequest&) { return std::vector<KeySpec>(); },
        [&](const PluginRequest&, Catalogue& to) {
          to.add<Optimizer>("mine", "Of a test.", std::make_shared<Declares>(key));
        });
  });
}

// Also in a table that checkpoints remember a few keys of, or none.
TEST(KindKeys, OfEveryTableAreRemembered) {
  for (const std::string table : {"train", "mine"}) {
    const auto loaded = [&](const char* value) {
      const ProgramFolder folder;
      folder.write("main.toml",
                   fmt::format("[data]\nsource = \"synthetic\"\n[{}]\nhalf = {}\n[plugins.mine]\n", table, value));
      const KindKey key{.spec = {"half", 1.0, "A number."}, .table = table};
      return load_config(
          folder.path("main.toml").string(), {}, [](const PluginRequest&) { return std::vector<KeySpec>(); },
          [&](const PluginRequest&, Catalogue& to) {
            to.add<Optimizer>("mine", "Of a test.", std::make_shared<Declares>(key));
          });
    };
    EXPECT_THAT(changed_settings(loaded("2.0"), remembered_settings(loaded("3.0"))),
                ElementsAre(table + ".half = 2.0 (was 3.0)"));
  }
}

TEST(KindKeys, ThatCannotBeAreRefusedAtTheirPlugin) {
  EXPECT_EQ(refused({.spec = {"mine", 1.0, "A number."}}), "no error");
  EXPECT_EQ(refused({.spec = {"eps", 1e-8, "As AdamW's."}}), "no error");
  EXPECT_THAT(
      refused({.spec = {"eps", 1e-6, "Another default."}}),
      AllOf(HasSubstr("main.toml:3:10: [plugins.mine] 'mine' declares a key that it cannot have: [optimizer] eps "
                      "is declared by another kind"),
            HasSubstr("its author declares it as that one, or gives it another name")));
  EXPECT_THAT(refused({.spec = {"lr", 1e-3, "The core's."}}), HasSubstr("[optimizer] lr is a key of the core"));
  KindKey needed{.spec = {"mine", 1.0, "A number."}};
  needed.spec.required = true;
  EXPECT_THAT(refused(needed), HasSubstr("[optimizer] mine is required, and another kind has no use for it"));
  EXPECT_THAT(refused({.spec = {"my key", 1.0, "A number."}}), HasSubstr("[optimizer] my key cannot be a key"));
}

}  // namespace
}  // namespace orthant::run_test::kind_keys_test
