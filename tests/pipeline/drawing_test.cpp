// `orthant plan --schedule` as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/support/program.h"

namespace orthant::drawing_test {
namespace {

using run_test::ProgramFolder;
using run_test::Result;
using testing::AllOf;
using testing::HasSubstr;

class Drawing : public testing::Test {
 protected:
  void SetUp() override { folder_.write("c.toml", run_test::tiny_config({}) + "[plugins.pipeline]\nsize = 2\n"); }
  Result draw(const std::vector<std::string>& values, const std::vector<std::string>& words = {}) {
    std::vector<std::string> all = {"plan", "c.toml", "--schedule"};
    all.insert(all.end(), words.begin(), words.end());
    return folder_.orthant(run_test::with_set(all, values));
  }
  ProgramFolder folder_;
};

// Four sequences, in two micro-batches; by hand as in programs_test.cpp.
TEST_F(Drawing, OfTwoStages) {
  const Result result = draw({"batch.micro_batch=2"});
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("2 stages, 2 micro-batches"), HasSubstr("stage 0   F0 F1 .  .  B0--- .  B1---\n"),
                    HasSubstr("stage 1   .  F0 B0--- F1 B1--- .  .\n"), HasSubstr("9 slots a step"),
                    HasSubstr("0.5 measured; (2 - 1) / 2 = 0.5"), HasSubstr("by stage: 2 1\n")));
}

TEST_F(Drawing, OfChunksNamesThem) {
  const Result result =
      draw({"batch.micro_batch=2", "plugins.pipeline.schedule=interleaved", "plugins.pipeline.chunks=2"});
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_THAT(result.output, AllOf(HasSubstr("stage 0   F0.0 F1.0 F0.1 F1.1 "), HasSubstr("(2 - 1) / (2 x 2) = 0.25")));
}

TEST_F(Drawing, OfALongStepIsCutShort) {
  const Result result = draw({"batch.sequences=64", "batch.micro_batch=1"});
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_THAT(result.output, AllOf(HasSubstr(" ..\n"), HasSubstr("195 slots a step, the first 27 are shown")));
}

TEST_F(Drawing, AsSvg) {
  const Result result = draw({"batch.micro_batch=2"}, {"--svg", folder_.path("s.svg").string()});
  EXPECT_EQ(result.code, 0) << result.error;
  std::stringstream svg;
  svg << std::ifstream(folder_.path("s.svg")).rdbuf();
  EXPECT_THAT(svg.str(), AllOf(testing::StartsWith("<svg "), HasSubstr("stage 1"), testing::EndsWith("</svg>\n")));
  std::size_t boxes = 0;
  for (std::size_t at = svg.str().find("hsl("); at != std::string::npos; at = svg.str().find("hsl(", at + 1)) {
    ++boxes;
  }
  EXPECT_EQ(boxes, 2u * 2u * 2u) << "a forward and a backward of each micro-batch on each stage";
}

TEST_F(Drawing, RefusesWhatItCannotDo) {
  EXPECT_EQ(draw({"plugins.pipeline.size=9"}).code, 78);
  EXPECT_NE(draw({}, {"--json"}).code, 0);
  EXPECT_NE(folder_.orthant({"plan", "c.toml", "--svg", "s.svg"}).code, 0) << "only with --schedule";
  EXPECT_THAT(draw({}, {"--svg", "missing/s.svg"}).error,
              HasSubstr("'missing/s.svg' cannot be written: there is no folder 'missing'"));
}

}  // namespace
}  // namespace orthant::drawing_test
