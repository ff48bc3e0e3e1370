// Two jobs and one run folder: the second is refused, and where the file system has no locks neither spoils the other.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "core/checkpoint/checkpoint.h"
#include "core/run/run_ids.h"
#include "core/run/run_lock.h"
#include "tests/support/error_of.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test::run_lock_test {
namespace {

namespace fs = std::filesystem;
using orthant::launch_test::eventually;
using orthant::launch_test::read_file;
using orthant::launch_test::Running;
using testing::AllOf;
using testing::AnyOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

class OneFolder : public testing::Test {
 protected:
  OneFolder() { folder_.write("c.toml", tiny_config({2, 2})); }

  static std::vector<std::string> command(const std::vector<std::string>& words = {},
                                          const std::vector<std::string>& values = {}) {
    std::vector<std::string> all = {paths::program(), "launch", "c.toml"};
    all.insert(all.end(), words.begin(), words.end());
    return with_set(all, values);
  }
  // A run that goes on until something ends it; returns once it has trained for a while.
  std::unique_ptr<Running> start_long(const std::vector<std::string>& environment = {}, int checkpoint_every = 50) {
    auto running = folder_.start(
        command({}, {"run.steps=1000000", fmt::format("run.checkpoint_every={}", checkpoint_every), "run.keep=1000"}),
        environment);
    EXPECT_TRUE(eventually([&] { return lines_of(folder_.run() / "metrics.jsonl").size() > 3; })) << running->error();
    return running;
  }
  Result second(const std::vector<std::string>& words = {}, const std::vector<std::string>& environment = {},
                const std::string& steps = "run.steps=60") {
    return folder_.command(command(words, {steps}), environment);
  }
  // Of every line and every checkpoint of the folder.
  void expect_all_of_run(const std::string& id) {
    for (const std::string& line : lines_of(folder_.run() / "metrics.jsonl")) {
      EXPECT_EQ(nlohmann::json::parse(line).at("run_id"), id);
    }
    for (const NamedCheckpoint& checkpoint : checkpoints_in(folder_.run() / "checkpoints")) {
      if (checkpoint.finished()) {
        EXPECT_EQ(CheckpointReader(checkpoint.path).state().at("run_id"), id) << checkpoint.path;
      }
    }
  }
  std::optional<fs::path> newest_finished() {
    for (const NamedCheckpoint& checkpoint : checkpoints_in(folder_.run() / "checkpoints")) {
      if (checkpoint.finished()) {
        return checkpoint.path;
      }
    }
    return std::nullopt;
  }
  // What jobs print that run at the same time comes together in each one's output() and error().
  ProgramFolder folder_;
  const std::vector<std::string> no_locks_ = {"LD_PRELOAD=" + paths::build("tests/disk_shim.so"),
                                              "ORTHANT_SHIM=op=flock errno=ENOLCK",
                                              "ASAN_OPTIONS=verify_asan_link_order=0"};
};

TEST_F(OneFolder, ASecondLaunchIsRefusedAndTheFirstGoesOn) {
  auto first = start_long();
  const RunIds ids = ids_in(folder_.run());
  for (const std::vector<std::string>& words : {std::vector<std::string>{}, {"--resume", "auto"}}) {
    const Result refused = second(words);
    EXPECT_EQ(refused.code, 78) << refused.error;
    EXPECT_THAT(refused.error,
                AllOf(HasSubstr(fmt::format("runs/r is in use: by process {} on ", first->pid())),
                      ContainsRegex("since 20[0-9-]+ [0-9:]+ UTC, job " + ids.job), HasSubstr("runs/.r.lock")));
  }
  // What starts nothing asks for nothing; and another folder is free.
  EXPECT_EQ(second({"--dry-run"}).code, 0);
  EXPECT_EQ(folder_.orthant({"plan", "c.toml"}).code, 0);
  EXPECT_EQ(folder_.orthant(with_set({"launch", "c.toml"}, {"run.name=\"other\"", "run.steps=1"})).code, 0);

  // A rank that something else has started asks by itself.
  const Result rank =
      folder_.command(with_set({paths::program(), "train", "c.toml"}, {"plugins.data.size=1", "plugins.expert.size=1"}),
                      {"ORTHANT_RANK=0", "ORTHANT_WORLD_SIZE=1"});
  EXPECT_EQ(rank.code, 78) << rank.error;
  EXPECT_THAT(rank.error, HasSubstr("runs/r is in use"));

  const std::size_t lines = lines_of(folder_.run() / "metrics.jsonl").size();
  EXPECT_TRUE(eventually([&] { return lines_of(folder_.run() / "metrics.jsonl").size() > lines; }));
  kill(first->pid(), SIGTERM);
  EXPECT_EQ(first->wait(), 75) << first->error();
  EXPECT_FALSE(fs::exists(folder_.run("r.1")));
  EXPECT_EQ(ids_in(folder_.run()).job, ids.job);
  expect_all_of_run(ids.run);

  const std::size_t done = lines_of(folder_.run() / "metrics.jsonl").size();
  const Result next = second({"--resume", "auto"}, {}, fmt::format("run.steps={}", done + 1));
  EXPECT_EQ(next.code, 0) << next.error;
  EXPECT_EQ(ids_in(folder_.run()).run, ids.run);
  EXPECT_NE(ids_in(folder_.run()).job, ids.job);
  expect_all_of_run(ids.run);
}

TEST_F(OneFolder, AKilledJobLeavesNoLock) {
  auto first = start_long();
  kill(first->pid(), SIGKILL);  // its ranks die with it, a moment later
  const Result next = second({"--resume", "auto"}, {}, "run.steps=70");
  EXPECT_EQ(first->wait(), -SIGKILL);
  EXPECT_EQ(next.code, 0) << next.error;
  EXPECT_THAT(next.error, Not(HasSubstr("in use")));
}

// A rank that lives on, such as a stopped one, holds the folder without its launcher.
TEST_F(OneFolder, ARankHoldsTheLockToo) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  fs::create_directories(folder_.path("runs"));
  const pid_t launcher = fork();
  if (launcher == 0) {
    const RunLock lock(folder_.run(), "the job", RunLock::Holder::children_too);
    if (fork() == 0) {
      char byte = 0;
      close(pipe_ends[1]);
      [[maybe_unused]] const ssize_t end = read(pipe_ends[0], &byte, 1);  // until the test closes its side
      _exit(0);
    }
    _exit(0);
  }
  close(pipe_ends[0]);
  for (const bool zombie : {true, false}) {
    siginfo_t ended{};
    waitid(P_PID, static_cast<id_t>(launcher), &ended, WEXITED | (zombie ? WNOWAIT : 0));
    const std::string refused = test::error_of<ConfigError>(
        [&] { RunLock(folder_.run(), "mine", RunLock::Holder::this_process, std::chrono::milliseconds(50)); });
    EXPECT_THAT(refused, AllOf(HasSubstr(fmt::format("by process {} on ", launcher)), HasSubstr("job the job"),
                               HasSubstr("which has ended; one that it started has not")))
        << (zombie ? "a zombie" : "");
  }
  close(pipe_ends[1]);
  RunLock mine(folder_.run(), "mine", RunLock::Holder::this_process,
               std::chrono::seconds(60));  // waits for that one to go
  EXPECT_EQ(mine.missing(), "");
}

TEST_F(OneFolder, WithoutLocksTheLaterJobKeepsTheFolder) {
  auto first = start_long(no_locks_);
  EXPECT_THAT(first->error(), HasSubstr("launch: note: cannot lock runs/.r.lock: No locks available"));
  const RunIds before = ids_in(folder_.run());
  const Result fresh = second({}, no_locks_);
  EXPECT_EQ(fresh.code, 0) << fresh.error;
  EXPECT_EQ(first->wait(), 78);  // no restart could give it the folder back
  const RunIds after = ids_in(folder_.run());
  EXPECT_NE(after.run, before.run);
  EXPECT_THAT(first->error(), HasSubstr("the run folder runs/r is another job's now"));
  EXPECT_THAT(first->error(), HasSubstr(fmt::format("this is run {}, job {}", before.run, before.job)));
  // "(none)": in the moment before the later one had written its own.
  EXPECT_THAT(first->error(), AnyOf(HasSubstr(fmt::format("of run {} and job {}", after.run, after.job)),
                                    HasSubstr("of run (none) and job (none)")));
  expect_all_of_run(after.run);
  EXPECT_EQ(lines_of(folder_.run() / "metrics.jsonl").size(), 60u);
  EXPECT_TRUE(fs::exists(folder_.checkpoint(60)));
  EXPECT_EQ(ids_in(folder_.run("r.1")).run, before.run);
}

// Submitted twice: both go on with the same run.
TEST_F(OneFolder, WithoutLocksOfTwoResumedJobsTheLaterOneGoesOn) {
  auto first = start_long(no_locks_, 5);
  EXPECT_TRUE(eventually([&] { return newest_finished() != std::nullopt; }));
  const RunIds before = ids_in(folder_.run());
  auto later = folder_.start(
      command({"--resume", "auto"}, {"run.steps=1000000", "run.checkpoint_every=5", "run.keep=1000"}), no_locks_);
  EXPECT_EQ(first->wait(), 78);  // no restart could give it the folder back
  kill(later->pid(), SIGTERM);
  EXPECT_EQ(later->wait(), 75) << later->error();
  const RunIds after = ids_in(folder_.run());
  EXPECT_EQ(after.run, before.run);
  EXPECT_THAT(first->error(), AllOf(HasSubstr(before.job), HasSubstr(after.job)));
  expect_all_of_run(before.run);
  std::int64_t step = 0;
  for (const std::string& line : lines_of(folder_.run() / "metrics.jsonl")) {
    EXPECT_EQ(nlohmann::json::parse(line).at("step"), ++step);
  }
  EXPECT_GT(step, 5);
}

TEST_F(OneFolder, ALockThatIsALinkIsNotFollowed) {
  folder_.write("precious", "words");
  fs::create_directories(folder_.path("runs"));
  fs::create_symlink(folder_.path("precious"), folder_.path("runs/.r.lock"));
  EXPECT_THAT(test::error_of<ConfigError>([&] { RunLock(folder_.run(), "job", RunLock::Holder::this_process); }),
              HasSubstr("is a symbolic link"));
  EXPECT_EQ(read_file(folder_.path("precious")), "words");
}

// Nobody but this job is in the folder: its weights are saved, and its bookkeeping is written anew.
TEST_F(OneFolder, BookkeepingThatIsRemovedIsWrittenAnew) {
  auto running = start_long({}, 5);
  const RunIds before = ids_in(folder_.run());
  ASSERT_TRUE(eventually([&] { return lines_of(folder_.run() / "metrics.jsonl").size() > 3; }));
  const std::string first = lines_of(folder_.run() / "metrics.jsonl").front();
  fs::remove(folder_.run() / "config.resolved.toml");
  fs::remove(folder_.run() / "metrics.jsonl");
  ASSERT_TRUE(eventually([&] { return ids_in(folder_.run()) == before; })) << running->error();
  kill(running->pid(), SIGTERM);
  EXPECT_EQ(running->wait(), 75) << running->error();
  EXPECT_THAT(running->error(), AllOf(HasSubstr("config.resolved.toml was removed or changed while the run goes on"),
                                      HasSubstr("metrics.jsonl was removed or renamed while the run goes on")));
  const std::vector<std::string> lines = lines_of(folder_.run() / "metrics.jsonl");
  EXPECT_EQ(lines.front(), first);
  const std::int64_t last = nlohmann::json::parse(lines.back()).at("step").get<std::int64_t>();
  EXPECT_EQ(static_cast<std::int64_t>(lines.size()), last);
  EXPECT_EQ(
      folder_.orthant({"launch", "c.toml", "--resume", "auto", "--set", fmt::format("run.steps={}", last + 1)}).code,
      0);
}

// The first job's restarts are the same job; an earlier run of the name is not what they go on with.
TEST_F(OneFolder, ARestartGoesOnWithWhatItHasBegun) {
  ASSERT_EQ(folder_.orthant({"launch", "c.toml"}).code, 0);
  const std::string earlier = read_file(folder_.run() / "metrics.jsonl");
  auto running =
      folder_.start(command({"--max-restarts", "1"}, {"run.steps=120", "run.checkpoint_every=10", "run.seed=3"}));
  EXPECT_TRUE(eventually([&] { return lines_of(folder_.run() / "metrics.jsonl").size() > 15; })) << running->error();
  kill(ranks_of(running->pid()).at(1), SIGKILL);
  EXPECT_EQ(running->wait(), 0) << running->error();
  EXPECT_EQ(read_file(folder_.run("r.1") / "metrics.jsonl"), earlier);
  EXPECT_FALSE(fs::exists(folder_.run("r.2")));
  EXPECT_EQ(lines_of(folder_.run() / "metrics.jsonl").size(), 120u);
  EXPECT_THAT(read_file(folder_.run() / "logs/rank_0.log"), HasSubstr("resumed from runs/r/checkpoints/step_"));
  expect_all_of_run(ids_in(folder_.run()).run);
}

}  // namespace
}  // namespace orthant::run_test::run_lock_test
