// A plugin author's day: install Orthant, copy the template, build it with find_package(orthant), train with it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test::out_of_tree_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

TEST(OutOfTree, TheTemplateBuildsAgainstAnInstalledPrefixAndTrains) {
  const ProgramFolder folder;
  const std::string prefix = folder.path("prefix").string();
  const Result installed = folder.command({ORTHANT_CMAKE, "--install", paths::build(), "--prefix", prefix});
  ASSERT_EQ(installed.code, 0) << installed.output << installed.error;
  fs::copy(paths::source("plugins/template"), folder.path("mine"), fs::copy_options::recursive);
  std::ofstream(folder.path("mine/CMakeLists.txt"), std::ios::app)
      << "install(TARGETS orthant_plugin_template LIBRARY DESTINATION lib)\n";
  const Result configured = folder.command({ORTHANT_CMAKE, "-S", "mine", "-B", "mine/build", "-G", ORTHANT_GENERATOR,
                                            "-DCMAKE_PREFIX_PATH=" + prefix, "-DCMAKE_BUILD_TYPE=Release",
                                            "-DCMAKE_CXX_COMPILER=" ORTHANT_CXX});
  ASSERT_EQ(configured.code, 0) << configured.output << configured.error;
  const Result built = folder.command({ORTHANT_CMAKE, "--build", "mine/build"});
  ASSERT_EQ(built.code, 0) << built.output << built.error;
  const fs::path library = folder.path("mine/build/liborthant_plugin_template.so");
  ASSERT_TRUE(fs::exists(library)) << built.output;

  auto grad_norm = [&](const std::string& name, const std::string& table) {
    folder.write("c.toml", tiny_config({1, 1}) + table);
    const Result run = folder.command(
        with_set({prefix + "/bin/orthant", "train", "c.toml"}, {"run.steps=1", "run.name=\"" + name + "\""}));
    EXPECT_EQ(run.code, 0) << run.error;
    return nlohmann::json::parse(lines_of(folder.run(name) / "metrics.jsonl").at(0)).at("grad_norm").get<double>();
  };
  const double plain = grad_norm("plain", "");
  const double tripled =
      grad_norm("tripled", fmt::format("[plugins.template]\npath = \"{}\"\nfactor = 3.0\n", library.string()));
  EXPECT_GT(plain, 0);
  EXPECT_NEAR(tripled, 3 * plain, 1e-5 * plain);
  // The installed program finds the installed plugins beside its own library.
  const Result list = folder.command({prefix + "/bin/orthant", "plugins"});
  EXPECT_THAT(list.output, HasSubstr(prefix));
  EXPECT_THAT(list.output, Not(HasSubstr("refused")));
  const Result kinds = folder.command(
      {prefix + "/bin/orthant", "plugins"},
      {"ORTHANT_PLUGIN_PATH=" + std::filesystem::path(paths::out_of_tree("lion")).parent_path().string()});
  EXPECT_THAT(kinds.output, HasSubstr("    optimizer \"lion\": "));
  EXPECT_THAT(kinds.output, HasSubstr("    gate \"hash\": "));
  // Installing leaves every byte, so that the checksum behind the library still fits.
  const Result moved =
      folder.command({ORTHANT_CMAKE, "--install", "mine/build", "--prefix", folder.path("p").string()});
  ASSERT_EQ(moved.code, 0) << moved.output << moved.error;
  const std::string content = launch_test::read_file(folder.path("p/lib/liborthant_plugin_template.so"));
  EXPECT_EQ(content, launch_test::read_file(library));
  EXPECT_THAT(content, HasSubstr("orthant-sha256:"));
}

}  // namespace
}  // namespace orthant::run_test::out_of_tree_test
