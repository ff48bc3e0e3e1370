// load_config: layers, provenance, order, what is implied, and the function that asks for a plugin's keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/part.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/config/config.h"
#include "core/config/validate.h"
#include "tests/config/loaded.h"
#include "tests/support/error_of.h"

namespace orthant::load_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string refusal(const std::string& file, const std::vector<std::string>& overrides = {}) {
  try {
    load_config(file, overrides, fake_plugin_keys);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST_F(Load, ValuesKnowWhereTheyWereWritten) {
  const Config config =
      load(synthetic + "[run]\n  steps =   12 # twelve\n[plugins.data]\nsize = 2\n", {"run.seed=5", "model.heads = 2"});
  const std::string file = folder_.path("main.toml");
  EXPECT_EQ(config.file, file);
  EXPECT_EQ(config.origin("run.steps"), file + ":4:13");
  EXPECT_EQ(config.origin("run.seed"), "--set:1:10");
  EXPECT_EQ(config.origin("model.heads"), "--set:2:15");
  EXPECT_EQ(config.origin("run.name"), "default");
  EXPECT_EQ(config.origin("plugins.data.size"), file + ":6:8");
  EXPECT_EQ(config.origin("plugins.data.zero"), "default");
  EXPECT_THROW(config.origin("run.nothing"), Error);
  EXPECT_THROW(config.origin("plugins.expert.size"), Error);
  EXPECT_THROW(config.origin("run"), Error);
}

TEST_F(Load, ValidationSetsHoldNothingOutUnlessSomebodySaysSo) {
  const std::string text(1000, 'x');
  folder_.write("sets/wiki.txt", text);
  folder_.write("base.toml", "[data]\npath = \"" + folder_.write("train.txt", text) +
                                 "\"\nvalidation_path = [\"sets/wiki.txt\", \"train.txt\"]\n");
  const std::string extends = "extends = \"base.toml\"\n";
  const Config config = load(extends);
  EXPECT_EQ(config.settings.data.validation_fraction, 0);
  EXPECT_EQ(config.table("data").number("validation_fraction"), 0);
  EXPECT_THAT(config.settings.data.validation_path,
              ElementsAre(folder_.path("sets/wiki.txt"), folder_.path("train.txt")));
  EXPECT_THAT(validation_names_of(config.settings), ElementsAre("wiki", "train"));
  EXPECT_THAT(warnings(config.settings), ElementsAre(HasSubstr("run.validate_every = 0: they are never measured")));
  EXPECT_EQ(load(extends, {"run.validate_every=5"}).settings.data.validation_fraction, 0);
  EXPECT_EQ(load(extends, {"data.validation_fraction=0.2"}).settings.data.validation_fraction, 0.2);
  EXPECT_EQ(load(extends, {"data.validation_path=[]"}).settings.data.validation_fraction, 0.1);
  EXPECT_THAT(
      load(extends, {"data.validation_path=sets/wiki.txt", "data.source=synthetic"}).settings.data.validation_path,
      ElementsAre((std::filesystem::current_path() / "sets/wiki.txt").string()))
      << "a command that only looks at a run's configuration needs no file";
}

TEST_F(Load, LaterFilesWinDepthFirst) {
  folder_.write("deep/deepest.toml", "[run]\nsteps = 1\nlog_every = 1\nkeep = 1\nthreads = 1\nseed = 11\n");
  folder_.write("deep/first.toml",
                "extends = \"deepest.toml\"\n[run]\nsteps = 2\nlog_every = 2\nkeep = 2\nthreads = 2\n");
  folder_.write("second.toml", "[run]\nsteps = 3\nlog_every = 3\nkeep = 3\n");
  const Config config =
      load("extends = [\"deep/first.toml\", \"second.toml\"]\n" + synthetic + "[run]\nsteps = 4\nlog_every = 4\n",
           {"run.steps=5", "run.steps=6"});
  EXPECT_EQ(config.settings.run.seed, 11u);     // the deepest alone
  EXPECT_EQ(config.settings.run.threads, 2);    // first over what it extends
  EXPECT_EQ(config.settings.run.keep, 3);       // second over first
  EXPECT_EQ(config.settings.run.log_every, 4);  // the file over what it extends
  EXPECT_EQ(config.settings.run.steps, 6);      // the last override over all
  EXPECT_EQ(config.origin("run.seed"), folder_.path("deep/deepest.toml") + ":6:8");
  EXPECT_EQ(config.origin("run.keep"), folder_.path("second.toml") + ":4:8");
}

TEST_F(Load, OneFileMayBeExtendedTwiceButNotInACircle) {
  folder_.write("base.toml", synthetic);
  folder_.write("left.toml", "extends = \"base.toml\"\n[run]\nsteps = 2\n");
  folder_.write("right.toml", "extends = \"base.toml\"\n[run]\nkeep = 2\n");
  EXPECT_EQ(load("extends = [\"left.toml\", \"right.toml\"]\n").settings.run.steps, 2);
  folder_.write("base.toml", "extends = \"link.toml\"\n");
  std::filesystem::create_symlink(folder_.path("main.toml"), folder_.path("link.toml"));  // another name for itself
  EXPECT_THAT(refusal(folder_.path("main.toml")), HasSubstr("extends goes in a circle: "));
}

TEST_F(Load, PluginsKeepTheOrderInWhichTheyAreFirstWritten) {
  folder_.write("base.toml", synthetic + "[plugins.needy]\nmodel = \"m\"\n[plugins.data]\nsize = 2\n");
  const Config config = load("extends = \"base.toml\"\n[plugins.expert]\nsize = 4\n[plugins.data]\nsize = 8\n",
                             {"plugins.needy.scale=3"});
  std::vector<std::string> names;
  for (const PluginRequest& plugin : config.plugins) {
    names.push_back(plugin.name);
  }
  EXPECT_THAT(names, ElementsAre("needy", "data", "expert"));
  EXPECT_EQ(config.plugins[0].table.number("scale"), 3.0);
  EXPECT_EQ(config.plugins[0].table.text("model"), "m");
  EXPECT_FALSE(config.plugins[0].table.boolean("on"));
  EXPECT_EQ(config.plugins[1].table.integer("size"), 8);
  EXPECT_EQ(config.plugins[1].table.integer("zero"), 0);
  EXPECT_EQ(config.plugins[1].origin, folder_.path("base.toml") + ":5:10");
  EXPECT_EQ(config.plugins[2].table.path(), "plugins.expert");
}

TEST_F(Load, AnOverrideMayAddAPlugin) {
  const Config config = load(synthetic + "[plugins.expert]\n", {"plugins.data.size=2"});
  ASSERT_EQ(config.plugins.size(), 2u);
  EXPECT_EQ(config.plugins[1].name, "data");
}

TEST_F(Load, PathsAreRelativeToTheFileThatWroteThem) {
  folder_.write("sub/text.txt", std::string(500, 'x'));
  folder_.write("sub/base.toml", "[data]\npath = [\"text.txt\"]\n[plugins.data]\npath = \"./lib.so\"\n");
  const Config config = load("extends = \"sub/base.toml\"\n");
  EXPECT_THAT(config.settings.data.path, ElementsAre(folder_.path("sub/text.txt")));
  EXPECT_EQ(config.plugins.at(0).path, folder_.path("sub/lib.so"));

  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder_.path("sub"));
  const Config set = load_config("../main.toml", {"data.path=text.txt"}, fake_plugin_keys);
  std::filesystem::current_path(before);
  EXPECT_THAT(set.settings.data.path, ElementsAre(folder_.path("sub/text.txt")));
  EXPECT_EQ(set.origin("data.path"), "--set:1:11");
}

TEST_F(Load, TheRouterImpliesTopK) {
  EXPECT_EQ(load(synthetic + "[moe]\nexperts = 4\nrouter = \"switch\"\n").settings.moe.top_k, 1);
  EXPECT_EQ(load(synthetic + "[moe]\nexperts = 4\nrouter = \"gshard\"\n").settings.moe.top_k, 2);
  EXPECT_EQ(load(synthetic + "[moe]\nexperts = 4\n").settings.moe.top_k, 2);
  const Config choosing = load(synthetic + "[moe]\nexperts = 70\nrouter = \"expert_choice\"\ncapacity_factor = 2\n");
  EXPECT_EQ(choosing.settings.moe.router, "expert_choice");
  EXPECT_EQ(choosing.settings.moe.top_k, 70);
  ASSERT_EQ(warnings(choosing.settings).size(), 1u);
  EXPECT_NE(warnings(choosing.settings)[0].find("looks ahead"), std::string::npos);
  EXPECT_TRUE(warnings(load(synthetic + "[moe]\nexperts = 4\n").settings).empty());
  // Routers that cannot learn from the loss.
  const auto warned = [&](const std::string& moe) { return warnings(load(synthetic + "[moe]\n" + moe).settings); };
  EXPECT_THAT(warned("experts = 4\ntop_k = 1\n"), ElementsAre(HasSubstr("auxiliary losses alone")));
  EXPECT_THAT(warned("experts = 4\ntop_k = 1\naux_loss = 0\n"), ElementsAre(HasSubstr("learns nothing")));
  EXPECT_THAT(warned("experts = 1\nzero_experts = 2\ntop_k = 1\n"), ElementsAre(HasSubstr("auxiliary losses alone")));
  EXPECT_THAT(warned("experts = 1\ntop_k = 1\n"), ElementsAre(HasSubstr("nothing to learn")));
  EXPECT_THAT(warned("experts = 1\nrouter = \"switch\"\ncapacity_factor = 0.5\n"),
              ElementsAre(AllOf(HasSubstr("nothing to learn"), HasSubstr("Mixture of Depths"))));
  EXPECT_THAT(warned("experts = 1\ntop_k = 1\nnormalize_weights = false\nscore = \"sigmoid\"\n"), ElementsAre());
  EXPECT_THAT(warned("experts = 1\nrouter = \"expert_choice\"\ncapacity_factor = 1\n"),
              ElementsAre(HasSubstr("takes every token")));
  EXPECT_THAT(warned("experts = 1\nrouter = \"expert_choice\"\ncapacity_factor = 0.5\n"),
              ElementsAre(HasSubstr("looks ahead")));
  EXPECT_TRUE(warnings(load(synthetic + "[moe]\nexperts = 0\nrouter = \"expert_choice\"\n").settings).empty());
  EXPECT_EQ(load(synthetic + "[moe]\nexperts = 4\ntop_k = 3\n").settings.moe.top_k, 3);
}

// The dense twin of any mixture: --set moe.experts=0.
TEST_F(Load, WithoutExpertsTheRestOfTheTableIsTurnedOff) {
  const std::string mixture = synthetic + "[moe]\nexperts = 4\ntop_k = 3\nscore = \"sigmoid\"\nd_expert = 8\n";
  EXPECT_EQ(load(mixture, {"moe.experts=0"}).settings.moe.experts, 0);
  EXPECT_NO_THROW(load(synthetic + "[moe]\nexperts = 0\nz_loss = 0.1\n"));
  EXPECT_NO_THROW(load(synthetic + "[moe]\n"));
}

TEST_F(Load, AWarmUpLongerThanTheRunIsWarnedOf) {
  EXPECT_TRUE(warnings(load(synthetic + "[run]\nsteps = 20\n[optimizer]\nwarmup_steps = 20\n").settings).empty());
  const auto found = warnings(load(synthetic + "[run]\nsteps = 2\n[optimizer]\nwarmup_steps = 20\n").settings);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NE(found[0].find("optimizer.warmup_steps = 20 is above run.steps = 2"), std::string::npos) << found[0];
}

TEST_F(Load, OverridesAreTomlAndBareWordsAreStrings) {
  const auto name = [&](const std::string& override) { return load(synthetic, {override}).settings.run.name; };
  EXPECT_EQ(name("run.name=first-try"), "first-try");
  EXPECT_EQ(name("run.name = \"quoted\""), "quoted");
  EXPECT_EQ(name("run.name='literal'"), "literal");
  EXPECT_EQ(name("run.name=3rd"), "3rd");
  EXPECT_EQ(name("run = {name = \"inline\", steps = 4}"), "inline");
  EXPECT_EQ(load(synthetic, {"optimizer.betas=[0.5, 0.75]"}).settings.optimizer.own.at("betas"),
            Value(std::vector<double>{0.5, 0.75}));
  EXPECT_EQ(load(synthetic, {"run.seed=0x10"}).settings.run.seed, 16u);
  const std::string file = folder_.path("main.toml");
  EXPECT_THAT(refusal(file, {"run.name=5"}), HasSubstr("expected a string, found the integer 5"));
  EXPECT_THAT(refusal(file, {"run.name=a\nrun.steps=3"}), HasSubstr("control character"));
  EXPECT_THAT(refusal(file, {"run.name=[a"}), HasSubstr("--set:1:"));
  EXPECT_THAT(refusal(file, {"[run]"}), HasSubstr("without 'key=value'"));
  EXPECT_THAT(refusal(file, {"=5"}), HasSubstr("without 'key=value'"));
}

TEST_F(Load, AnIntegerIsANumberAndASingleValueIsAList) {
  folder_.write("text.txt", std::string(500, 'x'));
  const Config config =
      load("[data]\npath = \"text.txt\"\n[optimizer]\nlr = 1\n[plugins.needy]\nmodel = \"m\"\nsizes = 4\n");
  EXPECT_EQ(config.settings.optimizer.lr, 1.0);
  EXPECT_EQ(config.settings.data.path.size(), 1u);
  EXPECT_EQ(std::get<std::vector<std::int64_t>>(config.plugins.at(0).table.entries().at("sizes").value),
            std::vector<std::int64_t>{4});
}

struct OtherAttention final : AttentionPart {
  std::vector<ParamSpec> parameters(const PartPlace&) const override { return {}; }
  double flops(const Settings&, int) const override { return 0; }
  std::unique_ptr<PartLayer> make(const PartPlace&, const Parameters&, const Plan&) const override { return nullptr; }
};

TEST_F(Load, AnAttentionOfAPluginIsNotToldOfSinksAndOfBlocksWithoutTheWindow) {
  const PluginKinds kinds = [](const PluginRequest&, Catalogue& catalogue) {
    catalogue.add<AttentionPart>("own", "Another one.", std::make_shared<OtherAttention>());
    const AttentionPart& built_in = catalogue.get<AttentionPart>("multi_head");
    catalogue.add<AttentionPart>("other", "Attention of a plugin.",
                                 std::shared_ptr<const AttentionPart>(std::shared_ptr<void>(), &built_in));
  };
  const auto error = [&](const std::string& model) {
    const std::string file = folder_.write(
        "main.toml", synthetic + "[plugins.data]\n[model]\nattention = \"other\"\nsliding_window = 4\n" + model);
    return test::error_of([&] { load_config(file, {}, fake_plugin_keys, kinds); });
  };
  EXPECT_EQ(error(""), "no error");
  EXPECT_THAT(error("attention_sinks = true\n"),
              HasSubstr("[model] attention_sinks: attention \"other\" takes no notice of it"));
  EXPECT_THAT(error("full_attention_every = 2\n"),
              HasSubstr("[model] full_attention_every: attention \"other\" takes no notice of it"));
  const std::string own = "attention_softcap = 20\n";
  EXPECT_THAT(test::error_of([&] {
                load_config(folder_.write("main.toml", synthetic + "[plugins.data]\n[model]\n" + own),
                            {"model.attention=own"}, fake_plugin_keys, kinds);
              }),
              HasSubstr("[model] attention_softcap: attention \"own\" takes no notice of it"));
}

TEST_F(Load, KeysOfAPluginThatCannotBeOnesAreRefused) {
  for (const char* name : {"path", "a.b", "", "a b"}) {
    const std::string file = folder_.write("main.toml", synthetic + "[plugins.odd]\n");
    const std::string error = test::error_of([&] {
      load_config(file, {}, [&](const PluginRequest&) {
        return std::vector<KeySpec>{{.name = name, .default_value = false, .help = "Odd."}};
      });
    });
    EXPECT_THAT(error, HasSubstr(fmt::format("[plugins.odd] the plugin declares the key '{}', which cannot be", name)));
  }
}

TEST_F(Load, ThePluginIsAskedForItsKeysWithItsFinalPath) {
  folder_.write("base.toml", synthetic + "[plugins.data]\npath = \"old.so\"\n");
  const std::string file =
      folder_.write("main.toml", "extends = \"base.toml\"\n[plugins.data]\npath = \"/new.so\"\n[plugins.expert]\n");
  std::vector<std::string> asked;
  load_config(file, {}, [&](const PluginRequest& plugin) {
    asked.push_back(plugin.name + " " + plugin.path);
    return fake_plugin_keys(plugin);
  });
  EXPECT_THAT(asked, ElementsAre("data /new.so", "expert "));
}

TEST_F(Load, LaterChecksReportAtTheValuesTheyAreAbout) {
  const Config config = load(synthetic + "[plugins.data]\nsize = 3\n", {"plugins.expert.size=2"});
  Diagnostics diagnostics = config.diagnostics();
  EXPECT_NO_THROW(diagnostics.throw_if_any());
  diagnostics.add(config.origin("plugins.expert.size"), "does not divide 3", "write 1 or 3");
  diagnostics.add(config.origin("plugins.data.size"), "does not divide 8", "write 4");
  const std::string file = folder_.path("main.toml");
  EXPECT_EQ(diagnostics.render(), file +
                                      ":4:8: does not divide 8\n    | size = 3\n    |        ^\n    = write 4\n\n"
                                      "--set:1:21: does not divide 3\n    | plugins.expert.size=2\n"
                                      "    |                     ^\n    = write 1 or 3\n");
  EXPECT_THROW(diagnostics.throw_if_any(), ConfigError);
}

}  // namespace
}  // namespace orthant::load_test
