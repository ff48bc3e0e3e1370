// A study that is killed, or told to stop: no point is lost, and none is trained twice.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "tests/study/study_program.h"
#include "tests/support/paths.h"

namespace orthant::interrupted_study_test {
namespace {

using launch_test::eventually;
using nlohmann::json;
using run_test::lines_of;
using run_test::Result;
using study_test::StudyProgram;
using testing::AllOf;
using testing::HasSubstr;

TEST_F(StudyProgram, AKillLosesAndRepeatsNoPointThatWasDone) {
  write("side_by_side = 1\ntiming_rounds = 0\n",
        "[[size]]\nname = \"short\"\nset = [\"run.steps=8\"]\n[[size]]\nname = \"long\"\nset = [\"run.steps=20\"]\n"
        "[[size]]\nname = \"endless\"\nset = [\"run.steps=4000\", \"run.checkpoint_every=20\"]\n"
        "[[grid]]\nsizes = [\"long\", \"short\"]\nexperts = [1, 4]\n[[grid]]\nsizes = [\"endless\"]\nexperts = [4]\n");
  // The endless point would come first: it is what takes longest.
  auto first = folder_.start({paths::program(), "bench", "expert-scaling", "study.toml", "--only",
                              "short_e1_k1_g1_one_s1", "--only", "long_e4_k1_g1_one_s1"});
  ASSERT_EQ(first->wait(), 0) << first->error();
  EXPECT_EQ(card().at("points").size(), 5u);  // the whole grid is there, whatever was asked for
  EXPECT_EQ(points().at("endless_e4_k1_g1_one_s1").at("status"), "waiting");
  const std::string kept = run_id("long_e4_k1_g1_one_s1");
  ASSERT_FALSE(kept.empty());

  const auto endless = study("points/endless_e4_k1_g1_one_s1");
  auto second = folder_.start({paths::program(), "bench", "expert-scaling", "study.toml", "--resume"});
  EXPECT_TRUE(eventually([&] { return std::filesystem::exists(endless / "checkpoints/step_000020"); }))
      << second->error();
  kill(second->pid(), SIGKILL);
  second->wait();
  const std::string unfinished = run_id("endless_e4_k1_g1_one_s1");

  // Asked to stop, it saves; --resume goes on with the run that the kill left.
  auto third = folder_.start({paths::program(), "bench", "expert-scaling", "study.toml", "--resume"});
  const std::size_t lines = lines_of(endless / "metrics.jsonl").size();
  EXPECT_TRUE(eventually([&] { return lines_of(endless / "metrics.jsonl").size() > lines + 4; })) << third->error();
  kill(third->pid(), SIGTERM);
  EXPECT_EQ(third->wait(), 75) << third->output() << third->error();
  EXPECT_THAT(third->error(), HasSubstr("2 of 5 points are done. Go on with --resume"));
  EXPECT_EQ(points().at("endless_e4_k1_g1_one_s1").at("status"), "waiting");
  EXPECT_EQ(run_id("endless_e4_k1_g1_one_s1"), unfinished);

  const Result rest =
      folder_.orthant({"bench", "expert-scaling", "study.toml", "--resume", "--only", "short_e4_k1_g1_one_s1", "--only",
                       "long_e4_k1_g1_one_s1", "--only", "short_e1_k1_g1_one_s1"});
  EXPECT_EQ(rest.code, 0) << rest.error;
  EXPECT_THAT(rest.output, HasSubstr("[1/1] short_e4_k1_g1_one_s1"));
  EXPECT_EQ(run_id("long_e4_k1_g1_one_s1"), kept);

  write("side_by_side = 1\n", "[[grid]]\nexperts = [1, 4]\n");
  const Result other = run({"--resume"});
  EXPECT_EQ(other.code, 78);
  EXPECT_THAT(other.error,
              AllOf(HasSubstr("the study has 2 points now, and had 5"), HasSubstr("written before the first run")));
}

// The time of a session that was killed has passed all the same.
TEST_F(StudyProgram, SecondsOfAKilledSessionCount) {
  write(
      "side_by_side = 1\ntiming_rounds = 0\nset = [\"run.steps=12000\", \"run.log_every=4000\", "
      "\"run.validate_every=4000\"]\n",
      "[[grid]]\nexperts = [4]\n");
  const std::string id = "base_e4_k1_g1_one_s1";
  const auto clock = [&] { return json::parse(launch_test::read_file(study("clock.json")), nullptr, false); };
  const auto begin = std::chrono::steady_clock::now();
  auto killed = folder_.start({paths::program(), "bench", "expert-scaling", "study.toml"});
  const json::json_pointer of_point("/points/" + id);
  EXPECT_TRUE(eventually([&] {
    const json now = std::filesystem::exists(study("clock.json")) ? clock() : json();
    return now.is_object() && now.contains(of_point) && now.at(of_point).get<double>() >= 1;
  })) << killed->error();
  kill(killed->pid(), SIGKILL);
  killed->wait();
  const double of_study = clock().at("seconds"), of_run = clock().at(of_point);
  EXPECT_GE(of_study, of_run);

  const Result rest = run({"--resume"});
  ASSERT_EQ(rest.code, 0) << rest.output << rest.error;
  const double all = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const double trained = points().at(id).at("result").at("train_seconds");
  EXPECT_GT(trained, of_run);
  EXPECT_LT(trained, all);
  EXPECT_GT(card().at("seconds").get<double>() - of_study, trained - of_run) << "the second session's part";
  EXPECT_LT(card().at("seconds").get<double>(), all);
}

// Timing goes on behind the round that a killed session had ended.
TEST_F(StudyProgram, TimedRoundsOfAKilledSessionCount) {
  write("side_by_side = 1\ntiming_rounds = 6\ntiming_steps = 2\nset = [\"run.steps=4\"]\n",
        "[[grid]]\nexperts = [4]\n");
  const std::string id = "base_e4_k1_g1_one_s1";
  const auto rounds = [&] {
    const json now = std::filesystem::exists(study("timings.json"))
                         ? json::parse(launch_test::read_file(study("timings.json")), nullptr, false)
                         : json();
    const json::json_pointer of_shape("/shapes/base_e4_k1_g1_one");
    return now.is_object() && now.contains(of_shape) ? now.at(of_shape) : json::array();
  };
  auto killed = folder_.start({paths::program(), "bench", "expert-scaling", "study.toml"});
  EXPECT_TRUE(eventually([&] { return !rounds().empty(); })) << killed->error();
  kill(killed->pid(), SIGKILL);
  killed->wait();
  const json before = rounds();
  ASSERT_GE(before.size(), 1u);
  ASSERT_LT(before.size(), 6u) << "it was not killed while it timed";

  const Result rest = run({"--resume"});
  ASSERT_EQ(rest.code, 0) << rest.output << rest.error;
  const json result = points().at(id).at("result");
  const json timed = result.at("step_seconds_of_rounds");
  ASSERT_EQ(timed.size(), 6u);
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(timed[i], before[i].at("step_seconds")) << "round " << i;
  }
  EXPECT_TRUE(result.contains("parts"));
  EXPECT_FALSE(std::filesystem::exists(study("timings.json"))) << "the card has them";

  std::ofstream(study("timings.json")) << "{}";  // of a session that ended once the card had them
  EXPECT_EQ(run({"--resume"}).code, 0);
  EXPECT_FALSE(std::filesystem::exists(study("timings.json")));
}

// Whenever the request comes, no point is lost: a run that is only starting is killed by it.
TEST_F(StudyProgram, AStopWhilePointsStartLosesNone) {
  write("side_by_side = 2\ntiming_rounds = 0\nset = [\"run.steps=3000\"]\n", "[[grid]]\nexperts = [1, 4]\n");
  auto stopped = folder_.start({paths::program(), "bench", "expert-scaling", "study.toml"});
  EXPECT_TRUE(eventually([&] { return std::filesystem::exists(study("points/base_e4_k1_g1_one_s1.log")); }))
      << stopped->error();
  kill(stopped->pid(), SIGTERM);
  EXPECT_EQ(stopped->wait(), 75) << stopped->output() << stopped->error();
  for (const auto& [id, point] : points()) {
    EXPECT_EQ(point.at("status"), "waiting") << point.at("error");
  }
}

// The first program that a process has started; 0: none.
pid_t child_of(pid_t process) {
  pid_t child = 0;
  std::ifstream(fmt::format("/proc/{0}/task/{0}/children", process)) >> child;
  return child;
}

// A program that does not end when it is told to is waited for, and killed at the second request.
TEST_F(StudyProgram, ASecondRequestToStopKills) {
  const auto stopped_twice = [&](const std::string& rest, const char* begun) {
    std::filesystem::remove_all(study());
    write(rest, "[[grid]]\nexperts = [4]\n");
    auto running = folder_.start({paths::program(), "bench", "expert-scaling", "study.toml"});
    const auto has_begun = [&] { return std::filesystem::exists(study(begun)); };
    for (int tries = 0; tries < 6 && !eventually(has_begun); ++tries) {
    }
    ASSERT_TRUE(has_begun()) << running->error();
    const pid_t child = child_of(running->pid());
    ASSERT_GT(child, 0);
    kill(child, SIGSTOP);
    kill(running->pid(), SIGTERM);
    std::this_thread::sleep_for(std::chrono::seconds(1));  // it is taken
    const double before = launch_test::processor_seconds(running->pid());
    std::this_thread::sleep_for(std::chrono::seconds(1));
    EXPECT_TRUE(launch_test::is_alive(running->pid())) << "it waits for what it has told";
    EXPECT_LT(launch_test::processor_seconds(running->pid()) - before, 0.3) << "and takes no time for that";
    kill(running->pid(), SIGUSR1);  // may come again
    kill(running->pid(), SIGTERM);
    EXPECT_TRUE(eventually([&] { return !launch_test::is_alive(running->pid()); }));
    EXPECT_TRUE(eventually([&] { return !launch_test::is_alive(child); }));
    kill(child, SIGKILL);
    EXPECT_EQ(running->wait(), 128 + SIGTERM) << running->output() << running->error();
    EXPECT_THAT(running->error(), HasSubstr("Go on with --resume"));
  };
  stopped_twice("side_by_side = 1\ntiming_rounds = 0\nset = [\"run.steps=30000\"]\n",
                "points/base_e4_k1_g1_one_s1/metrics.jsonl");
  EXPECT_EQ(points().at("base_e4_k1_g1_one_s1").at("status"), "waiting");
  stopped_twice("side_by_side = 1\ntiming_rounds = 1\ntiming_steps = 10000\n", "timing/0/metrics.jsonl");
}

}  // namespace
}  // namespace orthant::interrupted_study_test
