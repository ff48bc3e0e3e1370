// The first run of a newcomer, whole, and what README shows of it: with `./runtests --full`.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test::quickstart_test {
namespace {

TEST(Quickstart, SlowLossIsThatOfReadme) {
  ProgramFolder folder;
  const Result result = folder.orthant({"launch", paths::source("configs/quickstart.toml"), "--set",
                                        "run.directory=\"" + folder.path("runs").string() + "\""});
  ASSERT_EQ(result.code, 0) << result.error;
  const auto last = nlohmann::json::parse(lines_of(folder.run("quickstart") / "metrics.jsonl").back());
  EXPECT_EQ(last["step"], 200);
  EXPECT_LT(last["loss"], std::log(256.0) / 2);
  // What README shows; another processor's sums differ by rounding, which 200 steps enlarge.
  const std::vector<std::string> readme = lines_of(paths::source("README.md"));
  const auto shown = std::find_if(readme.begin(), readme.end(), [](const std::string& line) {
    return line.find("step 200/200") != std::string::npos;
  });
  ASSERT_NE(shown, readme.end());
  EXPECT_NEAR(last["validation_loss"], std::stod(shown->substr(shown->find("validation ") + 11)), 0.02);
  EXPECT_LT(last["validation_loss"], std::log(256.0) / 2);
}

}  // namespace
}  // namespace orthant::run_test::quickstart_test
