// A run whose device runs behind the host reads each report while the next step is under way: what it tells, and what
// it saves, is what a run tells and saves that waits for each step.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test::late_reports_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string config = R"(
[run]
name = "r"
directory = "runs"
steps = 9
log_every = 1
validate_every = 4
checkpoint_every = 3
[data]
source = "text"
path = ["text.txt"]
sequence_length = 16
validation_fraction = 0.2
[batch]
sequences = 4
[model]
layers = 2
d_model = 16
heads = 2
dropout = 0.1
[moe]
experts = 4
top_k = 2
capacity_factor = 1.25
)";

// Without what depends on the time, on the run, and on the memory of a device that holds tensors until it comes to
// them.
std::vector<json> told(const ProgramFolder& folder, const std::string& run) {
  std::vector<json> lines;
  for (const std::string& line : lines_of(folder.run(run) / "metrics.jsonl")) {
    json one = json::parse(line);
    for (const char* other : {"run_id", "job_id", "time", "step_seconds", "save_seconds", "tokens_per_second",
                              "peak_bytes", "peak_by_kind"}) {
      one.erase(other);
    }
    lines.push_back(one);
  }
  return lines;
}

class LateReports : public testing::Test {
 protected:
  LateReports() { folder_.write("c.toml", config); }
  // A trace shows steps apart, and so they are.
  Result train(const std::string& name, const std::vector<std::string>& more = {}) {
    std::vector<std::string> values = {"run.device=\"late\"", "run.name=\"" + name + "\"",
                                       name == "late" ? "run.trace=0" : "run.trace=1"};
    values.insert(values.end(), more.begin(), more.end());
    return folder_.orthant(with_set({"train", "c.toml"}, values));
  }
  ProgramFolder folder_;
};

TEST_F(LateReports, TellWhatARunTellsThatWaits) {
  for (const std::string name : {"waiting", "late"}) {
    const Result result = train(name);
    ASSERT_EQ(result.code, 0) << result.error;
  }
  const std::vector<json> late = told(folder_, "late"), waiting = told(folder_, "waiting");
  ASSERT_EQ(late.size(), 9u);
  for (std::size_t i = 0; i < late.size(); ++i) {
    EXPECT_EQ(late[i].at("step"), i + 1);
    EXPECT_EQ(late[i], waiting.at(i));
  }
  EXPECT_EQ(differences(folder_.checkpoint(9, "late"), folder_.checkpoint(9, "waiting")), std::vector<std::string>());
  EXPECT_EQ(differences(folder_.checkpoint(6, "late"), folder_.checkpoint(6, "waiting")), std::vector<std::string>());
}

// The step before the one that fails is told, and the message names the step.
TEST_F(LateReports, AStepThatIsNotFiniteEndsTheRunBehindTheLinesBefore) {
  std::map<std::string, std::string> what;  // is said of the step
  for (const std::string name : {"waiting", "late"}) {
    const Result result = train(name, {"optimizer.lr=1e25", "optimizer.clip_grad_norm=0", "optimizer.warmup_steps=0"});
    ASSERT_EQ(result.code, 1) << result.output;
    const std::size_t at = result.error.find("is not applied");
    ASSERT_NE(at, std::string::npos) << result.error;
    what[name] = result.error.substr(at, result.error.find('\n', result.error.find('\n', at) + 1) - at);
  }
  EXPECT_EQ(what["late"], what["waiting"]);
  EXPECT_EQ(told(folder_, "late"), told(folder_, "waiting"));
}

// Three steps are passed over, with lines of their own, and the fourth ends the run; a run that goes on from the second
// of them is told as much.
TEST_F(LateReports, StepsThatAreNotFiniteArePassedOver) {
  const std::vector<std::string> values = {
      "optimizer.lr=1e25", "optimizer.clip_grad_norm=0", "optimizer.warmup_steps=0", "run.skip_not_finite=3",
      "run.log_every=100", "run.validate_every=0",       "run.checkpoint_every=1",   "run.keep=100"};
  for (const std::string name : {"waiting", "late"}) {
    SCOPED_TRACE(name);
    const Result result = train(name, values);
    ASSERT_EQ(result.code, 1) << result.output;
    const std::vector<json> lines = told(folder_, name);
    ASSERT_EQ(lines.size(), 4u);
    for (std::size_t i = 1; i < 4; ++i) {
      const std::int64_t step = lines[i].at("step").get<std::int64_t>();
      EXPECT_EQ(step, lines[0].at("step").get<std::int64_t>() + static_cast<std::int64_t>(i));
      EXPECT_EQ(lines[i].at("passed_over"), true);
      EXPECT_TRUE(lines[i].at("grad_norm").is_null()) << lines[i];
      EXPECT_THAT(result.error, HasSubstr(fmt::format("step {} is passed over", step)));
    }
    EXPECT_FALSE(lines[0].contains("passed_over"));
    EXPECT_THAT(result.error, HasSubstr("step 5 is not applied"));
    EXPECT_EQ(differences(folder_.checkpoint(1, name), folder_.checkpoint(4, name)), std::vector<std::string>());
    const std::string rest = "rest_of_" + name;
    std::vector<std::string> of_rest = values;
    of_rest.push_back("run.name=\"" + rest + "\"");
    of_rest.push_back("run.device=\"late\"");
    std::vector<std::string> words = with_set({"train", "c.toml"}, of_rest);
    words.insert(words.end(), {"--resume", folder_.checkpoint(3, name).string()});
    const Result gone_on = folder_.orthant(words);
    EXPECT_EQ(gone_on.code, 1);
    EXPECT_THAT(gone_on.error, HasSubstr("step 4 is passed over"));
    EXPECT_THAT(gone_on.error, HasSubstr("step 5 is not applied"));
  }
  EXPECT_EQ(told(folder_, "late"), told(folder_, "waiting"));
}

// A signal that comes while two steps are under way: the later one is the last.
TEST_F(LateReports, AStopEndsTheRunWithTheStepThatIsUnderWay) {
  const auto running = folder_.start(
      with_set({paths::program(), "train", "c.toml"}, {"run.device=\"late\"", "run.name=\"late\"", "run.steps=100000",
                                                       "run.validate_every=0", "run.checkpoint_every=100000"}));
  ASSERT_TRUE(launch_test::eventually([&] { return lines_of(folder_.run("late") / "metrics.jsonl").size() > 4; }));
  kill(running->pid(), SIGTERM);
  EXPECT_EQ(running->wait(), 75) << running->error();
  const std::size_t steps = lines_of(folder_.run("late") / "metrics.jsonl").size();
  EXPECT_TRUE(std::filesystem::exists(folder_.checkpoint(static_cast<int>(steps), "late"))) << steps;
}

}  // namespace
}  // namespace orthant::run_test::late_reports_test
