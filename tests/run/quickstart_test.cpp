// The first run of a newcomer, whole: with `./runtests --full`.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test::quickstart_test {
namespace {

TEST(Quickstart, SlowLossAtLeastHalves) {
  ProgramFolder folder;
  const Result result = folder.orthant({"launch", paths::source("configs/quickstart.toml"), "--set",
                                        "run.directory=\"" + folder.path("runs").string() + "\""});
  ASSERT_EQ(result.code, 0) << result.error;
  const auto last = nlohmann::json::parse(lines_of(folder.run("quickstart") / "metrics.jsonl").back());
  EXPECT_EQ(last["step"], 200);
  EXPECT_LT(last["loss"], std::log(256.0) / 2);
  EXPECT_LT(last["validation_loss"], std::log(256.0) / 2);
}

}  // namespace
}  // namespace orthant::run_test::quickstart_test
