// The wall time of a study in its file.
#include "bench/study/study_clock.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/program.h"

namespace orthant::test {
namespace {

// A study is as much older than its point in each file, however many points the file has: a run never counts more than
// its study.
TEST(StudyClock, AllTimesOfAFileAreOfOneMoment) {
  const run_test::ProgramFolder folder;
  StudyClock clock(folder.path("clock.json"), 0);
  const auto head_start = [&] {
    const nlohmann::json known = nlohmann::json::parse(launch_test::read_file(folder.path("clock.json")));
    return known.at("seconds").get<double>() - known.at("points").at("z").get<double>();
  };
  clock.begin("z", false);
  const double of_one = head_start();
  EXPECT_GE(of_one, 0);
  for (int i = 0; i < 500; ++i) {
    clock.begin(fmt::format("a{}", i), false);
  }
  EXPECT_NEAR(head_start(), of_one, 1e-9);
}

}  // namespace
}  // namespace orthant::test
