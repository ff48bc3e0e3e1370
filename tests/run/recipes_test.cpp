// Every recipe in configs/ is what it says: it passes the checks of a dry run, and the recipes of layouts train. All of
// them train the same small model; the loss of the first step does not depend on the layout.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test::recipes_test {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> recipes() {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(paths::source("configs"))) {
    if (entry.path().extension() == ".toml") {
      found.push_back(entry.path().filename().string());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string name_of(const testing::TestParamInfo<std::string>& recipe) {
  std::string name = fs::path(recipe.param).stem().string();
  return (std::isdigit(static_cast<unsigned char>(name.front())) != 0 ? "of_" : "") + name;
}

class Recipes : public testing::TestWithParam<std::string> {
 protected:
  ProgramFolder folder_;
  std::string file_ = paths::source("configs/" + GetParam());
  std::string runs_ = "run.directory=\"" + folder_.path("runs").string() + "\"";
};

// The recipes for a text of one's own get one.
TEST_P(Recipes, PassTheChecks) {
  std::vector<std::string> words = {"launch", "--dry-run", file_, "--set", runs_};
  if (GetParam().starts_with("shakespeare")) {
    words.insert(words.end(), {"--set", "data.path=\"" + paths::source("README.md") + "\""});
  }
  const Result result = folder_.orthant(words);
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_FALSE(fs::exists(folder_.path("runs"))) << "a dry run leaves nothing";
}

INSTANTIATE_TEST_SUITE_P(All, Recipes, testing::ValuesIn(recipes()), name_of);

// Recipes of axes, alone and together.
class Axes : public Recipes {};

TEST_P(Axes, Train) {
  const Result result = folder_.orthant(
      with_set({"launch", file_}, {runs_, "run.steps=2", "run.log_every=1", "run.validate_every=0", "run.name=\"r\""}));
  ASSERT_EQ(result.code, 0) << result.error;
  const std::vector<std::string> lines = lines_of(folder_.run() / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NEAR(nlohmann::json::parse(lines.front())["loss"].get<double>(), 5.55, 0.1) << "ln 256 before any learning";
}

std::vector<std::string> recipes_of_axes() {
  std::vector<std::string> found;
  for (const std::string& recipe : recipes()) {
    if (recipe != "quickstart.toml" && !recipe.starts_with("shakespeare") && !recipe.starts_with("bench_") &&
        !recipe.starts_with("olmoe") && !recipe.starts_with("bert") && !recipe.starts_with("encoder")) {
      found.push_back(recipe);
    }
  }
  return found;
}

INSTANTIATE_TEST_SUITE_P(All, Axes, testing::ValuesIn(recipes_of_axes()), name_of);

}  // namespace
}  // namespace orthant::run_test::recipes_test
