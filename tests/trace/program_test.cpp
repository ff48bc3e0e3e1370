// run.trace as a user asks for it.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "core/trace/nvtx.h"
#include "tests/support/program.h"
#include "tests/trace/spans.h"

namespace orthant::trace_test::program_test {
namespace {

using run_test::ProgramFolder;
using run_test::Result;
using run_test::with_set;

std::string text_of_file(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(TraceProgram, ARunLeavesOneFileASummaryAndWords) {
  ProgramFolder folder;
  folder.write("r.toml", run_test::tiny_config({.data = 2, .expert = 2}));
  const Result result = folder.orthant(
      with_set({"launch", "r.toml"}, {"run.steps=6", "run.trace=2", "run.trace_first=4", "run.validate_every=5"}));
  ASSERT_EQ(result.code, 0) << result.error;
  EXPECT_NE(result.output.find("where the time of steps 4 to 5 went"), std::string::npos) << result.output;
  const std::filesystem::path trace = folder.run() / "trace";
  expect_nested(text_of_file(trace / "trace.json"));
  EXPECT_NE(text_of_file(trace / "trace.json").find("\"validation\""), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(trace / "rank_0.json"));
  const auto summary = nlohmann::json::parse(text_of_file(trace / "summary.json"));
  EXPECT_EQ(summary["steps"], (nlohmann::json{4, 5}));
  ASSERT_EQ(summary["ranks"].size(), 2u);
  for (const auto& rank : summary["ranks"]) {
    double sum = 0;
    for (const char* part : {"compute", "exposed", "waiting", "bubble", "other"}) {
      sum += rank[part].get<double>();
    }
    EXPECT_NEAR(sum, rank["seconds"].get<double>(), 1e-9);
  }
  EXPECT_TRUE(summary["why"].is_string());
}

TEST(TraceProgram, RangesNeedABuildThatHasThem) {
  ProgramFolder folder;
  folder.write("r.toml", run_test::tiny_config({}));
  const Result result = folder.orthant(with_set({"train", "r.toml"}, {"run.steps=1", "run.nvtx=true"}));
  EXPECT_EQ(result.code, has_nvtx() ? 0 : 78);
  EXPECT_EQ(result.error.find("no NVTX") != std::string::npos, !has_nvtx()) << result.error;
}

TEST(TraceProgram, WhatCannotBeTracedIsSaid) {
  ProgramFolder folder;
  folder.write("r.toml", run_test::tiny_config({}));
  ASSERT_EQ(folder.orthant(with_set({"train", "r.toml"}, {"run.steps=2"})).code, 0);
  EXPECT_FALSE(std::filesystem::exists(folder.run() / "trace"));
  const Result resumed = folder.orthant(
      with_set({"train", "r.toml", "--resume", "auto"}, {"run.steps=3", "run.trace=1", "run.trace_first=1"}));
  ASSERT_EQ(resumed.code, 0) << resumed.error;
  EXPECT_NE(resumed.error.find("nothing is traced"), std::string::npos) << resumed.error;
  const Result one = folder.orthant(with_set({"train", "r.toml", "--resume", "auto"}, {"run.steps=4", "run.trace=9"}));
  ASSERT_EQ(one.code, 0) << one.error;
  EXPECT_NE(one.output.find("where the time of steps 4 to 4 went"), std::string::npos) << one.output;
}

}  // namespace
}  // namespace orthant::trace_test::program_test
