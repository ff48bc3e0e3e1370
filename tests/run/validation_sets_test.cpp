// A run with validation sets: metrics, TensorBoard's tags, eval of the same files, refusals before a rank starts.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/run/tensorboard.h"
#include "tests/support/program.h"

namespace orthant::run_test::validation_sets_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string text_of(int lines, int step) {
  std::string text;
  for (int i = 0; i < lines; ++i) {
    text += fmt::format("line {} says {}\n", i * step, i * i % 23);
  }
  return text;
}

class ValidationSetRun : public testing::Test {
 protected:
  ValidationSetRun() {
    folder_.write("c.toml", tiny_config({2, 2}));
    folder_.write("sets/wiki.txt", text_of(40, 3));
    folder_.write("sets/code.txt", text_of(9, 5));
  }
  // Without noise and dropping, so that a token's loss does not depend on who is measured beside it.
  Result train(const std::vector<std::string>& values, std::vector<std::string> words = {}) {
    words.insert(words.begin(), {"train", "c.toml"});
    return folder_.orthant(with_set(with_set(words, {"run.validate_every=3", "moe.router=topk", "moe.capacity_factor=0",
                                                     "data.validation_sequences=1000"}),
                                    values));
  }
  std::vector<json> metrics(const std::string& name = "r") const {
    std::vector<json> lines;
    for (const std::string& line : lines_of(folder_.run(name) / "metrics.jsonl")) {
      lines.push_back(json::parse(line));
    }
    return lines;
  }
  double eval(const std::string& file) {
    const Result told = folder_.orthant({"eval", "runs/r", "--json", file});
    EXPECT_EQ(told.code, 0) << told.error;
    return json::parse(told.output).at("files").at(0).at("nats_per_token").get<double>();
  }
  ProgramFolder folder_;
  const std::string sets_ = "data.validation_path=[\"sets/wiki.txt\", \"sets/code.txt\"]";
};

TEST_F(ValidationSetRun, TellsTheLossOfEachSetAsEvalDoes) {
  const Result result = train({sets_, "run.steps=7"});
  ASSERT_EQ(result.code, 0) << result.error;
  EXPECT_THAT(result.output, HasSubstr("  validation "));
  const std::vector<json> lines = metrics();
  ASSERT_EQ(lines.size(), 7u);
  for (const json& line : lines) {
    const int step = line.at("step");
    ASSERT_EQ(line.contains("validation_losses"), step == 3 || step == 6 || step == 7) << step;
    ASSERT_EQ(line.contains("validation_loss"), line.contains("validation_losses"));
  }
  const json& last = lines.back().at("validation_losses");
  EXPECT_EQ(last.size(), 2u);
  const double wiki = last.at("wiki"), code = last.at("code");
  EXPECT_NEAR(wiki, eval("sets/wiki.txt"), 1e-6);
  EXPECT_NEAR(code, eval("sets/code.txt"), 1e-6);
  const auto tokens = [&](const char* file) { return static_cast<double>(fs::file_size(folder_.path(file))) - 1; };
  const double a = tokens("sets/wiki.txt"), b = tokens("sets/code.txt");
  EXPECT_NEAR(lines.back().at("validation_loss").get<double>(), (a * wiki + b * code) / (a + b), 1e-9);
  EXPECT_THAT(result.output, HasSubstr(fmt::format("  wiki {:.4f}  code {:.4f}", wiki, code)));
  const Scalars scalars = tensorboard_scalars(lines_of(folder_.run() / "metrics.jsonl").back());
  EXPECT_THAT(scalars, testing::Contains(testing::Pair("validation_loss/wiki", testing::DoubleNear(wiki, 1e-12))));
  EXPECT_THAT(scalars, testing::Contains(testing::Pair("validation_loss/code", testing::DoubleNear(code, 1e-12))));
  // The same run again from its resolved configuration, somewhere else.
  fs::create_directories(folder_.path("else"));
  fs::copy_file(folder_.run() / "config.resolved.toml", folder_.path("else/again.toml"));
  ASSERT_EQ(folder_.orthant(with_set({"train", "else/again.toml"}, {"run.name=again"})).code, 0);
  EXPECT_EQ(metrics("again").back().at("validation_losses"), last);
  EXPECT_EQ(folder_.orthant({"report", "runs/r", "runs/again"}).code, 0);
}

// A run that goes on in another layout measures the same sets.
TEST_F(ValidationSetRun, IsResumedInAnotherLayout) {
  ASSERT_EQ(train({sets_, "data.validation_names=[\"a\", \"b-2\"]", "optimizer.schedule=constant"}).code, 0);
  const json whole = metrics().back().at("validation_losses");
  EXPECT_TRUE(whole.contains("a") && whole.contains("b-2"));
  const Result resumed = train({sets_, "data.validation_names=[\"a\", \"b-2\"]", "optimizer.schedule=constant",
                                "run.name=other", "plugins.data.size=1", "plugins.expert.size=1"},
                               {"--resume", "runs/r/checkpoints/step_000004"});
  ASSERT_EQ(resumed.code, 0) << resumed.error;
  const json other = metrics("other").back().at("validation_losses");
  EXPECT_NEAR(other.at("a").get<double>(), whole.at("a").get<double>(), 1e-4);
  EXPECT_NEAR(other.at("b-2").get<double>(), whole.at("b-2").get<double>(), 1e-4);
}

TEST_F(ValidationSetRun, WhatCannotBeMeasuredIsRefusedBeforeARankStarts) {
  const auto refusal = [&](const std::vector<std::string>& values) {
    const Result result = train(values);
    EXPECT_EQ(result.code, 78) << result.output;
    EXPECT_FALSE(fs::exists(folder_.run()));
    return result.error;
  };
  EXPECT_THAT(refusal({"data.validation_path=sets/none.txt"}),
              AllOf(HasSubstr("--set:5:"), HasSubstr("none.txt: there is no such file")));
  folder_.write("sets/few.txt", "one two\n\n\nx");
  const std::string few = "data.validation_path=[\"sets/wiki.txt\", \"sets/few.txt\"]";
  EXPECT_THAT(refusal({few}), HasSubstr("do not make one sequence of 16 positions"));
  folder_.write("sets/one.txt", "x\n\n\ny");
  const std::string one =
      refusal({"data.validation_path=[\"sets/wiki.txt\", \"sets/one.txt\"]", "data.documents=packed"});
  EXPECT_THAT(one, AllOf(HasSubstr("--set:5:40: [data] validation_path: set 'one':"), HasSubstr("no document of two")));
  EXPECT_THAT(refusal({sets_, "data.validation_names=[\"a\", \"a\"]"}),
              HasSubstr("two validation sets are called 'a'"));
  EXPECT_THAT(refusal({sets_, "data.source=synthetic"}), HasSubstr("source \"synthetic\" reads no files"));
}

TEST_F(ValidationSetRun, SetsThatAreNeverMeasuredAreToldOf) {
  const Result result = train({sets_, "run.validate_every=0", "run.steps=1"});
  ASSERT_EQ(result.code, 0) << result.error;
  EXPECT_THAT(result.error, HasSubstr("run.validate_every = 0: they are never measured"));
  EXPECT_FALSE(metrics().back().contains("validation_losses"));
}

}  // namespace
}  // namespace orthant::run_test::validation_sets_test
