// Ranks that die, stop or compute nonsense, as the user of `orthant launch` meets them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "core/checkpoint/checkpoint.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test::failure_test {
namespace {

namespace fs = std::filesystem;
using orthant::launch_test::eventually;
using orthant::launch_test::is_alive;
using orthant::launch_test::Running;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class RunFailure : public testing::Test {
 protected:
  RunFailure() { folder_.write("c.toml", tiny_config({2, 2})); }

  // A run that goes on until something ends it; returns once it has trained for a while.
  std::unique_ptr<Running> start_long(const std::vector<std::string>& values = {},
                                      std::vector<std::string> words = {}) {
    const int before = last_step();
    words.insert(words.begin(), {paths::program(), "launch", "c.toml"});
    auto running = folder_.start(with_set(with_set(words, {"run.steps=100000", "run.log_every=1"}), values));
    EXPECT_TRUE(eventually([&] { return last_step() >= before + 3; })) << running->error();
    ranks_ = ranks_of(running->pid());
    EXPECT_EQ(ranks_.size(), 2u);
    return running;
  }
  int last_step() const {
    const std::vector<std::string> lines = lines_of(folder_.run() / "metrics.jsonl");
    const nlohmann::json json = nlohmann::json::parse(lines.empty() ? "" : lines.back(), nullptr, false);
    return json.is_object() ? json.at("step").get<int>() : 0;
  }
  void expect_nothing_left() const {
    for (const auto& [rank, pid] : ranks_) {
      EXPECT_FALSE(is_alive(pid)) << "rank " << rank;
      EXPECT_NE(kill(-pid, 0), 0) << "the process group of rank " << rank;
    }
    EXPECT_THAT(shared_memory_left(), IsEmpty());
  }

  ProgramFolder folder_;
  std::map<int, pid_t> ranks_;
};

TEST_F(RunFailure, AKilledRankIsNamedAndResumingEndsWithTheSameWeights) {
  const std::vector<std::string> values = {"run.steps=120", "run.checkpoint_every=10", "run.keep=3"};
  std::vector<std::string> unbroken_values = values;
  unbroken_values.emplace_back("run.name=\"unbroken\"");
  const Result unbroken = folder_.orthant(with_set({"launch", "c.toml"}, unbroken_values));
  ASSERT_EQ(unbroken.code, 0) << unbroken.error;

  auto running = start_long(values);
  EXPECT_TRUE(eventually([&] { return last_step() >= 15; }));
  kill(ranks_.at(1), SIGKILL);
  EXPECT_EQ(running->wait(), 128 + SIGKILL) << running->output();
  EXPECT_THAT(running->error(), HasSubstr("rank 1 failed first: it was killed by signal 9 (Killed)"));
  EXPECT_THAT(running->error(), HasSubstr("its newest checkpoint is runs/r/checkpoints/step_0000"));
  expect_nothing_left();
  EXPECT_FALSE(fs::exists(folder_.checkpoint(120)));

  const Result resumed = folder_.orthant(with_set({"launch", "c.toml", "--resume", "auto"}, values));
  ASSERT_EQ(resumed.code, 0) << resumed.error;
  EXPECT_THAT(resumed.output, HasSubstr("resumed from runs/r/checkpoints/step_"));
  EXPECT_THAT(differences(folder_.checkpoint(120), folder_.checkpoint(120, "unbroken")), IsEmpty());
}

TEST_F(RunFailure, RestartsResumeFromTheLastCheckpoint) {
  const std::vector<std::string> values = {"run.steps=120", "run.checkpoint_every=10"};
  auto running = start_long(values, {"--max-restarts", "1"});
  EXPECT_TRUE(eventually([&] { return last_step() >= 15; }));
  kill(ranks_.at(0), SIGKILL);
  EXPECT_EQ(running->wait(), 0) << running->error();
  EXPECT_THAT(running->error(), HasSubstr("restart 1 of 1"));
  EXPECT_THAT(running->output(), HasSubstr("resumed from runs/r/checkpoints/step_"));
  EXPECT_EQ(last_step(), 120);
  EXPECT_FALSE(fs::exists(folder_.run("r.1")));
  EXPECT_THAT(orthant::launch_test::read_file(folder_.run() / "logs/rank_0.log"), HasSubstr("resumed from"));
  expect_nothing_left();
}

TEST_F(RunFailure, AStoppedRankIsNamedAfterTheTimeout) {
  auto running = start_long({"run.timeout_seconds=2"});
  kill(ranks_.at(1), SIGSTOP);
  EXPECT_EQ(running->wait(), 1);
  // Who, in which collective, the how manieth, of what size.
  EXPECT_THAT(running->error(),
              ContainsRegex("rank 1 did not [a-z ]+ [a-z_]+ #[0-9]+ \\([0-9]+ bytes\\) of group '[^']+' "
                            "within 2 s"));
  EXPECT_THAT(running->error(), HasSubstr("launch: rank 1 failed first: it is stopped (state T)\n"));
  expect_nothing_left();
}

TEST_F(RunFailure, ARequestToStopSavesAndCanBeResumed) {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    const std::vector<std::string> resume =
        signal == SIGTERM ? std::vector<std::string>{} : std::vector<std::string>{"--resume", "auto"};
    const int before = signal == SIGTERM ? 0 : last_step();
    auto running = start_long({"run.checkpoint_every=0", "optimizer.schedule=\"constant\""}, resume);
    kill(running->pid(), signal);
    EXPECT_EQ(running->wait(), 75) << running->error();
    EXPECT_THAT(running->output(), HasSubstr("go on with --resume auto"));
    EXPECT_GT(last_step(), before);
    EXPECT_TRUE(fs::exists(folder_.checkpoint(last_step())));
    if (signal != SIGTERM) {
      EXPECT_THAT(running->output(), HasSubstr(fmt::format("after step {}\n", before)));
    }
    expect_nothing_left();
  }
  const Result rest = folder_.orthant(
      with_set({"launch", "c.toml", "--resume", "auto"}, {fmt::format("run.steps={}", last_step() + 1)}));
  EXPECT_EQ(rest.code, 0) << rest.error;
}

// As whoever signals every process of a job does it; one rank is enough.
TEST_F(RunFailure, ARequestToOneRankIsAsGoodAsOneToTheLauncher) {
  for (const int signal : {SIGHUP, SIGUSR1}) {
    auto running = start_long({"run.checkpoint_every=0"}, {"--resume", "auto"});
    kill(ranks_.at(1), signal);
    EXPECT_EQ(running->wait(), 75) << running->error();
    expect_nothing_left();
  }
}

// A request that comes while the ranks are being loaded waits until they can answer it.
TEST_F(RunFailure, ARequestToStopInTheFirstMomentsOfTheRanksIsHeard) {
  auto running = folder_.start(with_set({paths::program(), "launch", "c.toml"}, {"run.steps=100000"}));
  std::map<int, pid_t> ranks;
  for (const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
       ranks.empty() && std::chrono::steady_clock::now() < limit;) {
    ranks = ranks_of(running->pid());
  }
  ASSERT_FALSE(ranks.empty());
  kill(ranks.begin()->second, SIGTERM);
  kill(running->pid(), SIGTERM);
  EXPECT_EQ(running->wait(), 75) << running->error();
  EXPECT_TRUE(fs::exists(folder_.checkpoint(1)));
}

// The same numbers fail in the same step, however often.
TEST_F(RunFailure, AStepThatFailsTwiceInTheSameWayIsNotTriedAgain) {
  const Result result =
      folder_.orthant(with_set({"launch", "c.toml", "--max-restarts", "5"}, {"optimizer.lr=1e30", "run.steps=50"}));
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.error, HasSubstr("launch: restart 1 of 5"));
  EXPECT_THAT(result.error, ContainsRegex("launch: step [0-9]+ failed twice in the same way"));
  EXPECT_THAT(result.error, Not(HasSubstr("launch: restart 2")));
}

TEST_F(RunFailure, AStepThatIsNotFiniteIsNotApplied) {
  const Result result =
      folder_.orthant(with_set({"launch", "c.toml"}, {"optimizer.lr=1e30", "run.checkpoint_every=1", "run.steps=50"}));
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.error, ContainsRegex("step [0-9]+ is not applied: loss .*, gradient norm"));
  EXPECT_THAT(result.error, ContainsRegex("(layer [0-9]|embedding|head)[a-z ]* on rank [0-9]"));
  const auto newest = latest_checkpoint(folder_.run() / "checkpoints");
  ASSERT_TRUE(newest.has_value());
  CheckpointReader(*newest).verify();
  EXPECT_EQ(CheckpointReader(*newest).step(), last_step());  // the step that failed left neither
}

}  // namespace
}  // namespace orthant::run_test::failure_test
