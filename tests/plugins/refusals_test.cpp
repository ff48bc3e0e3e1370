// Plugins that cannot be loaded, must not be, or do not fit: each is refused before any rank starts, by name.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/plugin.h>
#include <sys/stat.h>

#include <algorithm>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test::refusals_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

class PluginRefusals : public testing::Test {
 protected:
  static std::string fixture(const std::string& name, const std::string& folder = "") {
    return paths::build("tests/plugins/fixtures/" + folder + "liborthant_plugin_" + name + ".so");
  }
  // Trains with a table [plugins.NAME] in line 29; returns what it said. Every refusal exits with 78 and leaves
  // nothing.
  std::string refused(const std::string& name, const std::string& keys,
                      const std::vector<std::string>& environment = {}) {
    const std::string config = tiny_config({1, 1});
    const auto line = 1 + std::count(config.begin(), config.end(), '\n');
    folder_.write("c.toml", config + "[plugins." + name + "]\n" + keys);
    const Result result = folder_.orthant({"train", "c.toml"}, environment);
    EXPECT_EQ(result.code, 78) << result.output;
    EXPECT_THAT(result.error, HasSubstr(fmt::format("c.toml:{}:", line)));
    EXPECT_FALSE(fs::exists(folder_.run()));
    return result.error;
  }
  std::string refused_file(const std::string& name) {
    return refused(name, fmt::format("path = \"{}\"\n", fixture(name)));
  }
  ProgramFolder folder_;
};

TEST_F(PluginRefusals, OneThatIsNowhereListsEveryPathTried) {
  const std::string error = refused("mine", "", {"ORTHANT_PLUGIN_PATH=" + folder_.path("a").string() + ":/nowhere/b"});
  EXPECT_THAT(error, HasSubstr("no plugin 'mine' can be loaded. Tried:"));
  EXPECT_THAT(error, HasSubstr("/a/liborthant_plugin_mine.so: no such file"));
  EXPECT_THAT(error, HasSubstr("/nowhere/b/liborthant_plugin_mine.so: no such file"));
  EXPECT_THAT(error, HasSubstr(paths::plugin("liborthant_plugin_mine.so: no such file")));
  EXPECT_THAT(error, HasSubstr("ORTHANT_PLUGIN_PATH"));
}

// Training with a later folder's plugin of the same name would be training with another plugin.
TEST_F(PluginRefusals, TheFirstFileOfTheNameIsNotPassedOver) {
  const std::vector<std::string> path = {"ORTHANT_PLUGIN_PATH=" + folder_.path("a").string()};
  folder_.write("a/liborthant_plugin_template.so", std::string(4096, 'x'));
  EXPECT_THAT(refused("template", "", path),
              AllOf(HasSubstr("cannot load plugin \"template\": "), HasSubstr("invalid ELF header"),
                    HasSubstr("/a/liborthant_plugin_template.so: "), HasSubstr("No later folder is searched")));
  fs::remove(folder_.path("a/liborthant_plugin_template.so"));
  fs::copy_file(fixture("other_headers"), folder_.path("a/liborthant_plugin_template.so"));
  EXPECT_THAT(refused("template", "", path), HasSubstr(" was built with"));
  fs::remove(folder_.path("a/liborthant_plugin_template.so"));
  fs::create_symlink("/nowhere", folder_.path("a/liborthant_plugin_template.so"));
  EXPECT_THAT(refused("template", "", path), HasSubstr("/a/liborthant_plugin_template.so: no such file"));
}

TEST_F(PluginRefusals, AMisspeltNameIsRefusedWithASuggestion) {
  EXPECT_THAT(refused("tempalte", ""),
              HasSubstr("no plugin 'tempalte' can be loaded (did you mean 'template'?). Tried:"));
}

TEST_F(PluginRefusals, ACommunicatorIsSaidToBeOne) {
  const std::string file = paths::plugin("liborthant_communicator_mpi.so");
  if (!fs::exists(file)) {
    GTEST_SKIP() << "MPI was not found when this was configured";
  }
  const Result result = folder_.orthant({"plugins", "--check", file});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.output, AllOf(HasSubstr(file + " is a communicator"), HasSubstr("run.communicator"),
                                   Not(HasSubstr("ORTHANT_PLUGIN("))));
}

TEST_F(PluginRefusals, AConfiguredPathIsTheOnlyOneTried) {
  const std::string error = refused("data2", "path = \"./libmine.so\"\n");
  EXPECT_THAT(error, HasSubstr("/libmine.so"));
  EXPECT_THAT(error, Not(HasSubstr(paths::plugin())));
}

TEST_F(PluginRefusals, ALibraryUnderAnotherPluginsNameIsToldWhereItsKindsClash) {
  const std::string path = fmt::format("path = \"{}\"\n", paths::out_of_tree("lion"));
  folder_.write("c.toml", tiny_config({1, 1}) + "[plugins.lion]\n" + path + "[plugins.other]\n" + path);
  const Result result = folder_.orthant({"train", "c.toml"});
  EXPECT_EQ(result.code, 78) << result.output;
  EXPECT_THAT(result.error, HasSubstr("is plugin 'lion': write [plugins.lion], or the path of another one"));
}

// Opening a pipe would wait for whoever writes to it.
TEST_F(PluginRefusals, APipeIsNoLibrary) {
  ASSERT_EQ(mkfifo(folder_.path("pipe.so").c_str(), 0600), 0);
  EXPECT_THAT(refused("mine", "path = \"pipe.so\"\n"), HasSubstr("pipe.so: not a regular file"));
}

// Its constructor would end the process: see fixtures/runs_at_once.cpp.
TEST_F(PluginRefusals, OneThatUsesHeadersThatHaveChangedIsToldWhich) {
  const std::string error = refused_file("other_headers");
  EXPECT_THAT(error, HasSubstr("plugin " + fixture("other_headers") + " was built with other public headers"));
  EXPECT_THAT(error, ContainsRegex("settings \\(settings\\.h\\): built with [0-9a-f]{16}, here [0-9a-f]{16}"));
  EXPECT_THAT(error, AllOf(Not(HasSubstr("plan.h")), HasSubstr("Rebuild it against the installed headers")));
}

TEST_F(PluginRefusals, AnotherAbiOrASmallerEntryIsRefusedBeforeAnyCall) {
  EXPECT_THAT(refused_file("other_abi"), HasSubstr("speaks plugin ABI 99, this Orthant speaks "));
  EXPECT_THAT(refused_file("no_module"), HasSubstr("it exports no orthant_module_entry"));
}

TEST_F(PluginRefusals, ALibraryThatIsNoPluginIsToldHowToBecomeOne) {
  EXPECT_THAT(refused_file("no_entry"),
              AllOf(HasSubstr("is not an Orthant plugin: it has no note of Orthant's"), HasSubstr("ORTHANT_PLUGIN(")));
}

TEST_F(PluginRefusals, WhatAPluginSaysInItsConstructorIsPassedOn) {
  EXPECT_THAT(refused_file("create_fails"),
              AllOf(HasSubstr("plugin 'create_fails'"), HasSubstr("the accelerator it drives is not plugged in")));
}

TEST_F(PluginRefusals, WhatIsThrownWhileItIsLoadedComesWithItsName) {
  const std::string path = fmt::format("path = \"{}\"\n", fixture("throws"));
  EXPECT_THAT(refused("throws", path + "what = \"exception\"\n"),
              AllOf(HasSubstr("plugin 'throws' ("), HasSubstr(") fails in add_to(): its kinds are not there")));
  EXPECT_THAT(refused("throws", path + "what = \"number\"\n"),
              AllOf(HasSubstr("plugin 'throws' ("), HasSubstr("fails in add_to(): it throws what is no")));
  folder_.write("c.toml", tiny_config({1, 1}) + "[optimizer]\nname = \"sulky\"\n[plugins.throws]\n" + path);
  const Result result = folder_.orthant({"train", "c.toml"});
  EXPECT_EQ(result.code, 78) << result.output;
  EXPECT_THAT(result.error, HasSubstr("optimizer 'sulky' of plugin 'throws' fails in check(): its check went wrong"));
}

TEST_F(PluginRefusals, AnUnknownKeyIsRefusedWithASuggestion) {
  folder_.write("c.toml", tiny_config({1, 1}) + "[plugins.template]\nfactr = 2.0\n");
  const Result result = folder_.orthant({"launch", "c.toml"});
  EXPECT_EQ(result.code, 78);
  EXPECT_THAT(result.error, HasSubstr("unknown key 'factr' in [plugins.template]"));
  EXPECT_THAT(result.error, HasSubstr("'factor'"));
  EXPECT_THAT(result.error, ContainsRegex("c.toml:[0-9]+:1: "));
}

// Of a stranger's file: its library would end the program.
TEST_F(PluginRefusals, LookingAtAConfigurationRunsNothingThatItNames) {
  folder_.write("c.toml", tiny_config({1, 1}) + fmt::format("[plugins.mine]\npath = \"{}\"\nsize = 2\nlist = [1, 2]\n",
                                                            fixture("runs_at_once", "opened/")));
  const Result shown = folder_.orthant({"config", "c.toml", "--resolved"});
  EXPECT_EQ(shown.code, 0) << shown.error;
  EXPECT_THAT(shown.output, AllOf(HasSubstr("[plugins.mine]\n"), HasSubstr("\nsize = 2 "), HasSubstr("list = [1, 2]")));
  EXPECT_THAT(shown.error, AllOf(HasSubstr("[plugins.mine] is shown as written"), HasSubstr("--load-plugins")));
  EXPECT_THAT(folder_.orthant({"config", "c.toml"}).output, HasSubstr("mine, not checked"));
  EXPECT_EQ(folder_.orthant({"config", "c.toml", "--load-plugins"}).code, 99);
  EXPECT_EQ(folder_.orthant({"plan", "c.toml"}).code, 99);
  // What the user names is opened: by --set, or by a folder that is searched.
  const std::string path = fixture("runs_at_once", "opened/");
  EXPECT_EQ(folder_.orthant({"config", "c.toml", "--set", "plugins.mine.path=" + path}).code, 99);
  EXPECT_EQ(
      folder_.orthant({"config", "c.toml"}, {"ORTHANT_PLUGIN_PATH=" + fs::path(path).parent_path().string()}).code, 99);
}

TEST_F(PluginRefusals, TwoAtOneSeamAreBothNamed) {
  EXPECT_THAT(refused_file("rival"),
              AllOf(HasSubstr("plugin 'rival' binds a second token exchange"), HasSubstr("expert")));
}

TEST_F(PluginRefusals, TheListSaysWhatIsFoundWhere) {
  const Result result = folder_.orthant(
      {"plugins"}, {"ORTHANT_PLUGIN_PATH=" + paths::build("tests/plugins/fixtures") + ":/nowhere/plugins"});
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_THAT(result.output, HasSubstr(paths::build("tests/plugins/fixtures") + "\n"));
  EXPECT_THAT(result.output, HasSubstr("/nowhere/plugins: No such file or directory"));
  EXPECT_THAT(result.output, HasSubstr(paths::plugin() + "\n"));
  EXPECT_THAT(result.output, ContainsRegex("template +liborthant_plugin_template.so"));
  EXPECT_THAT(result.output, ContainsRegex("factor +Every gradient"));
  EXPECT_THAT(result.output, ContainsRegex("no_entry .*refused: .*is not an Orthant plugin"));
  EXPECT_THAT(result.output, ContainsRegex("other_abi .*refused: .*speaks plugin ABI 99"));
}

}  // namespace
}  // namespace orthant::run_test::refusals_test
