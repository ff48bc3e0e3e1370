// What a study takes from a run as a point's result.
#include "bench/study/point_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/error_of.h"
#include "tests/support/program.h"

namespace orthant::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string error_with_losses(const std::string& first, const std::string& last) {
  const run_test::ProgramFolder root;
  StudyFolder folder;
  folder.root = root.path("study");
  GridPoint point;
  point.id = "p";
  point.steps = 4;
  std::filesystem::create_directories(folder.run_of(point));
  std::ofstream(folder.run_of(point) / "metrics.jsonl")
      << R"({"step": 2, "tokens": 128, "validation_loss": )" << first << "}\n"
      << R"({"step": 4, "tokens": 256, "validation_loss": )" << last << "}\n";
  return error_of([&] { result_of(folder, point, {}); });
}

TEST(PointRun, TakesOnlyLossesThatItsCardMayHold) {
  EXPECT_EQ(error_with_losses("5.5", "1e-9"), "no error");
  EXPECT_THAT(error_with_losses("5.5", "0.0"),
              AllOf(HasSubstr("validation loss 0.0 at step 4"), HasSubstr("above 0 and up to 1e+06")));
  EXPECT_THAT(error_with_losses("2e6", "3.5"), HasSubstr("at step 2"));
}

}  // namespace
}  // namespace orthant::test
