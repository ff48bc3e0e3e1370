// run.checkpoint_async under whole runs: disks that are slow, full or silent (tests/support/disk_shim.c), kills and
// requests to stop while files are written, and what a run goes on from afterwards.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <thread>

#include "core/checkpoint/checkpoint.h"
#include "tests/run/unfinished_saves.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test::async_checkpoints_test {
namespace {

namespace fs = std::filesystem;
using launch_test::eventually;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class AsyncCheckpoints : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a sanitizer's library wants to be the first that is loaded";
#endif
    folder_.write("c.toml", tiny_config({2, 1}));
  }
  static std::vector<std::string> with(const std::string& shim) {
    return {"LD_PRELOAD=" + paths::build("tests/disk_shim.so"), "ORTHANT_SHIM=" + shim};
  }
  static std::vector<std::string> words(std::vector<std::string> values, const std::vector<std::string>& more) {
    std::vector<std::string> all = {"launch", "c.toml"};
    all.insert(all.end(), more.begin(), more.end());
    values.insert(values.begin(), {"run.checkpoint_async=true", "optimizer.schedule=\"constant\""});
    return with_set(all, values);
  }
  Result train(const std::string& shim, const std::vector<std::string>& values,
               const std::vector<std::string>& more = {}) const {
    return folder_.orthant(words(values, more), with(shim));
  }
  // The same run, whose checkpoints are waited for.
  void train_waiting(std::vector<std::string> values) const {
    values.insert(values.end(), {"run.checkpoint_async=false", "run.name=\"waiting\""});
    const Result result = train("", values);
    ASSERT_EQ(result.code, 0) << result.error;
  }
  void expect_same(const std::vector<int>& steps) const {
    for (const int step : steps) {
      EXPECT_THAT(differences(folder_.checkpoint(step), folder_.checkpoint(step, "waiting")), IsEmpty()) << step;
    }
  }
  std::vector<std::string> unfinished() const {
    return unfinished_saves(folder_.run());
  }
  // By step, where a line tells it.
  std::map<int, double> waited(const std::string& name = "r") const {
    std::map<int, double> seconds;
    for (const std::string& line : lines_of(folder_.run(name) / "metrics.jsonl")) {
      const nlohmann::json json = nlohmann::json::parse(line);
      if (json.contains("save_seconds")) {
        seconds[json.at("step").get<int>()] = json.at("save_seconds").get<double>();
      }
    }
    return seconds;
  }
  ProgramFolder folder_;
};

// Ten steps are trained within the time of one write, which is also longer than ranks wait for one another.
TEST_F(AsyncCheckpoints, TrainingGoesOnWhileADiskIsSlow) {
  const std::vector<std::string> values = {"run.steps=20", "run.checkpoint_every=10", "run.timeout_seconds=2"};
  const Result result = train("op=fsync path=step_000010.tmp/rank_00001 delay_ms=2500", values);
  ASSERT_EQ(result.code, 0) << result.error;
  EXPECT_THAT(result.error, Not(AnyOf(HasSubstr("stuck"), HasSubstr("has waited")))) << "it is the last one that waits";
  train_waiting(values);
  expect_same({10, 20});
  ASSERT_TRUE(waited().contains(11));
  EXPECT_LT(waited().at(11), 2) << "the copy alone";
  EXPECT_TRUE(waited("waiting").contains(11));
}

TEST_F(AsyncCheckpoints, ASaveWaitsForTheOneBefore) {
  const std::vector<std::string> values = {"run.steps=8", "run.checkpoint_every=2"};
  const Result result = train("op=fsync path=tmp/rank_00000 delay_ms=400", values);
  ASSERT_EQ(result.code, 0) << result.error;
  const std::string said = "warning: the checkpoint of step 4 has waited ";
  EXPECT_THAT(result.error, AllOf(HasSubstr(said), HasSubstr("for that of step 2"),
                                  HasSubstr("run.checkpoint_every = 2 asks of it")));
  EXPECT_EQ(result.error.find("has waited"), result.error.rfind("has waited")) << "once";
  EXPECT_GT(waited().at(5), 0.1);
  train_waiting(values);
  expect_same({2, 4, 6, 8});
  EXPECT_THAT(unfinished(), IsEmpty());
}

TEST_F(AsyncCheckpoints, AWriteThatFailsEndsTheRunByItsReason) {
  for (const char* fault :
       {"op=write path=step_000004.tmp/rank_00001 errno=ENOSPC",
        "op=fsync path=step_000004.tmp/rank_00000 errno=ENOSPC", "op=write path=step_000004.tmp/manifest errno=ENOSPC",
        "op=rename path=step_000004.tmp errno=ENOSPC"}) {
    const Result result = train(fault, {"run.steps=100000", "run.checkpoint_every=2", "run.log_every=1000"});
    EXPECT_EQ(result.code, 1) << fault;
    EXPECT_THAT(result.error, AllOf(HasSubstr("step_000004.tmp"), HasSubstr("No space left on device"))) << fault;
    EXPECT_THAT(result.error, Not(HasSubstr("stuck"))) << fault;
    EXPECT_EQ(latest_checkpoint(folder_.run() / "checkpoints"), folder_.checkpoint(2)) << fault;
    EXPECT_THAT(unfinished(), IsEmpty()) << fault;
  }
}

// It would answer in a minute, and nobody waits for that.
TEST_F(AsyncCheckpoints, ADiskThatDoesNotAnswerEndsTheRun) {
  const auto begin = std::chrono::steady_clock::now();
  const Result result = train("op=fsync path=step_000002.tmp/rank_00001 delay_ms=60000",
                              {"run.steps=100000000", "run.checkpoint_every=2", "run.disk_timeout_seconds=1",
                               "run.timeout_seconds=5", "run.log_every=1000"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.error,
              AllOf(HasSubstr("rank 1, checkpoint of step 2"), HasSubstr("within run.disk_timeout_seconds = 1 s")));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(40));
}

// What a power failure must find, as SlowDisk.WhatMustLastIsSyncedBeforeWhatRestsOnIt says it.
TEST_F(AsyncCheckpoints, NothingHasItsNameBeforeItIsSynced) {
  const Result result = train("op=fsync,rename path=runs/r log=" + folder_.path("log").string(),
                              {"run.steps=30", "run.checkpoint_every=10"});
  ASSERT_EQ(result.code, 0) << result.error;
  const std::vector<std::string> log = lines_of(folder_.path("log"));
  const auto at = [&](const std::string& words, std::size_t from = 0) {
    std::size_t line = from;
    while (line < log.size() && log[line].find(words) == std::string::npos) {
      ++line;
    }
    return line;
  };
  const std::size_t manifest = at("step_000010.tmp/manifest.json"), renamed = at("/step_000010.tmp ->");
  ASSERT_LT(renamed, log.size());
  EXPECT_LT(at("step_000010.tmp/rank_00000"), manifest);
  EXPECT_LT(at("step_000010.tmp/rank_00001"), manifest);
  EXPECT_LT(at("/metrics.jsonl"), manifest);
  EXPECT_LT(manifest, renamed);
  EXPECT_LT(at("step_000010.tmp", manifest + 1), renamed) << "the folder too";
  EXPECT_LT(renamed, at("/checkpoints", renamed + 1));
}

TEST_F(AsyncCheckpoints, ARequestToStopWaitsForWhatIsBeingWritten) {
  const std::vector<std::string> values = {"run.steps=100000000", "run.checkpoint_every=20"};
  std::vector<std::string> all = words(values, {});
  all.insert(all.begin(), paths::program());
  const auto running = folder_.start(all, with("op=fsync path=step_000020.tmp/rank_00001 delay_ms=1500"));
  ASSERT_TRUE(eventually([&] { return lines_of(folder_.run() / "metrics.jsonl").size() > 22; })) << running->error();
  EXPECT_FALSE(fs::exists(folder_.checkpoint(20)));
  kill(running->pid(), SIGTERM);
  EXPECT_EQ(running->wait(), 75) << running->error();
  EXPECT_TRUE(fs::exists(folder_.checkpoint(20)));
  EXPECT_THAT(unfinished(), IsEmpty());
  const int stopped = static_cast<int>(lines_of(folder_.run() / "metrics.jsonl").size());
  const int end = stopped + 3;
  const std::vector<std::string> to_the_end = {fmt::format("run.steps={}", end), "run.checkpoint_every=20"};
  const Result rest = train("", to_the_end, {"--resume", "auto"});
  ASSERT_EQ(rest.code, 0) << rest.error;
  EXPECT_THAT(rest.output, HasSubstr(fmt::format("after step {}", stopped)));
  train_waiting(to_the_end);
  expect_same({20, end});
}

// A process dies right before an operation of a write or of its commit; another layout goes on as after any save.
TEST_F(AsyncCheckpoints, AKillLeavesTheCheckpointBeforeOrTheNewOne) {
  const std::vector<std::string> values = {"run.steps=16", "run.checkpoint_every=4"};
  train_waiting(values);
  const std::vector<double> losses = folder_.losses("waiting");
  for (const char* fault :
       {"op=write path=step_000008.tmp/rank_00001 rank=1 nth=2 signal=9",
        "op=fsync path=step_000008.tmp/rank_00000 rank=0 signal=9",
        "op=write path=step_000008.tmp/manifest rank=0 signal=9", "op=rename path=step_000008.tmp rank=0 signal=9",
        "op=fsync path=r/checkpoints rank=0 nth=5 signal=9"}) {
    fs::remove_all(folder_.run());
    const Result killed = train(fault, values);
    EXPECT_EQ(killed.code, 128 + SIGKILL) << fault << killed.error;
    const std::optional<fs::path> newest = latest_checkpoint(folder_.run() / "checkpoints");
    ASSERT_TRUE(newest.has_value()) << fault;
    const Result rest = train("", values, {"--resume", "auto"});
    ASSERT_EQ(rest.code, 0) << fault << rest.error;
    expect_same({16});
    EXPECT_EQ(folder_.losses(), losses) << fault;
    EXPECT_THAT(unfinished(), IsEmpty()) << fault;
  }
}

// At any moment, again and again, on a disk on which something is always being written.
TEST_F(AsyncCheckpoints, KillsAtRandomCostNoBit) {
  const std::vector<std::string> values = {"run.steps=150", "run.checkpoint_every=5", "run.keep=2"};
  train_waiting(values);
  std::mt19937 random(7);
  std::vector<std::string> all = words(values, {"--resume", "auto"});
  all.insert(all.begin(), paths::program());
  for (int kills = 0; kills < 3; ++kills) {
    const std::size_t before = lines_of(folder_.run() / "metrics.jsonl").size();
    const auto running = folder_.start(all, with("op=write,fsync,rename,mkdir path=checkpoints delay_ms=6"));
    eventually([&] {
      return lines_of(folder_.run() / "metrics.jsonl").size() != before || !launch_test::is_alive(running->pid());
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 300));
    const auto ranks = ranks_of(running->pid());
    if (!ranks.empty()) {
      kill(ranks.begin()->second, SIGKILL);
    }
    running->wait();
  }
  const Result rest = train("", values, {"--resume", "auto"});
  ASSERT_EQ(rest.code, 0) << rest.error;
  expect_same({150});
  EXPECT_EQ(folder_.losses(), folder_.losses("waiting"));
  EXPECT_THAT(unfinished(), IsEmpty());
}

TEST_F(AsyncCheckpoints, AnotherLayoutGoesOnFromOneAsFromAnyOther) {
  const std::vector<std::string> values = {"run.steps=8", "run.checkpoint_every=4"};
  ASSERT_EQ(train("", values).code, 0);
  train_waiting(values);
  for (const char* from : {"r", "waiting"}) {
    const Result rest = train(
        "", {"run.steps=8", "plugins.data.size=4", "plugins.expert.size=2", fmt::format("run.name=\"from_{}\"", from)},
        {"--resume", folder_.checkpoint(4, from).string()});
    ASSERT_EQ(rest.code, 0) << rest.error;
  }
  EXPECT_THAT(differences(folder_.checkpoint(8, "from_r"), folder_.checkpoint(8, "from_waiting")), IsEmpty());
}

TEST_F(AsyncCheckpoints, AFolderThatAnotherJobTakesGetsNoCheckpoint) {
  std::vector<std::string> all = words({"run.steps=100000000", "run.checkpoint_every=10"}, {});
  all.insert(all.begin(), paths::program());
  const auto running = folder_.start(all, with("op=fsync path=step_000010.tmp/rank_00001 delay_ms=1000"));
  ASSERT_TRUE(eventually([&] { return fs::exists(folder_.run() / "checkpoints/step_000010.tmp"); }));
  const std::string settings = launch_test::read_file(folder_.run() / "config.resolved.toml");
  folder_.write("runs/r/config.resolved.toml", "# run_id = 00000000000000000000000000000000\n" + settings);
  EXPECT_EQ(running->wait(), 78) << running->error();
  EXPECT_THAT(running->error(), HasSubstr("is another job's now"));
  EXPECT_FALSE(fs::exists(folder_.checkpoint(10)));
}

TEST_F(AsyncCheckpoints, ATraceShowsTheCopyAndTheFiles) {
  const Result result = train("", {"run.steps=16", "run.checkpoint_every=2", "run.trace=12"});
  ASSERT_EQ(result.code, 0) << result.error;
  const nlohmann::json trace =
      nlohmann::json::parse(launch_test::read_file(folder_.run() / "trace/trace.json")).at("traceEvents");
  std::map<std::string, std::set<std::pair<int, int>>> tracks;  // by the name of a span: ranks and tracks
  for (const nlohmann::json& event : trace) {
    if (event.at("ph") == "X") {
      tracks[event.at("name").get<std::string>()].emplace(event.at("pid").get<int>(), event.at("tid").get<int>());
    }
  }
  EXPECT_EQ(tracks["save"].size(), 2u) << "on each rank's main track";
  ASSERT_EQ(tracks["write checkpoint"].size(), 2u);
  EXPECT_EQ(tracks["commit checkpoint"].size(), 1u) << "on rank 0 alone";
  for (const auto& track : tracks["write checkpoint"]) {
    EXPECT_FALSE(tracks["save"].contains(track));
  }
}

// The copy is memory, and too little of it is refused before a rank starts.
TEST_F(AsyncCheckpoints, ThePlanCountsTheCopy) {
  const auto planned = [&](const std::string& async) {
    const Result plan = folder_.orthant(
        with_set({"plan", "c.toml", "--json"}, {"run.checkpoint_every=4", "run.checkpoint_async=" + async}));
    EXPECT_EQ(plan.code, 0) << plan.error;
    return plan.output.find("\"worst_host_bytes\":0") != std::string::npos ||
           plan.output.find("\"worst_host_bytes\": 0") != std::string::npos;
  };
  EXPECT_TRUE(planned("false"));
  EXPECT_FALSE(planned("true"));
  const Result refused = train("", {"memory.host_limit=\"1 KiB\""});
  EXPECT_EQ(refused.code, 78);
  EXPECT_THAT(refused.error, AllOf(HasSubstr("host_limit"), HasSubstr("the copy of run.checkpoint_async")));
  EXPECT_FALSE(fs::exists(folder_.run()));
}

}  // namespace
}  // namespace orthant::run_test::async_checkpoints_test
