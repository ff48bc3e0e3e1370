// run.time_limit: the run saves and ends while there is time, and going on from there is as if it had not ended.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "core/run/time_limit.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test::time_limit_test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class Clock {
 public:
  double now = 100;
  TimeLimit limit(double seconds) {
    return TimeLimit(seconds, [this] { return now; });
  }
};

TEST(TimeLimit, LeavesRoomForTheLongestStepAndSave) {
  Clock clock;
  TimeLimit limit = clock.limit(200);
  limit.begin();
  clock.now = 120;
  limit.after_step(8);  // 20 s
  clock.now = 130;      // what lies between steps counts with the next one
  limit.before_save();
  clock.now = 145;  // 15 s
  limit.after_save();
  clock.now = 150;
  limit.after_step(8);  // 10 + 5 s
  EXPECT_FALSE(limit.is_up(1, 8));
  clock.now = 165;
  EXPECT_FALSE(limit.is_up(1, 8)) << "165 + 20 + 15 is 200";
  EXPECT_TRUE(limit.is_up(2, 8));
  EXPECT_TRUE(limit.is_up(1, 8, true)) << "a save that is due takes 15 too";
  clock.now = 150;
  EXPECT_FALSE(limit.is_up(1, 8, true)) << "150 + 15 + 20 + 15 is 200";
  clock.now = 165.5;
  EXPECT_TRUE(limit.is_up(1, 8));
  EXPECT_EQ(limit.text(8),
            "run.time_limit = 200 s: 165.5 s have passed, and another step (20.0 s) and a save (15.0 s) may not fit\n");
}

// A save beside the steps is to end first, and then the last one takes as long as the longest.
TEST(TimeLimit, LeavesRoomForASaveThatGoesOn) {
  Clock clock;
  TimeLimit limit = clock.limit(200);
  limit.begin();
  clock.now = 110;
  limit.after_step(8);  // 10 s
  limit.before_save();
  clock.now = 112;  // the copy
  limit.save_goes_on();
  clock.now = 122;
  limit.after_step(8);  // 10 s: without the copy
  EXPECT_FALSE(limit.is_up(6, 8)) << "122 + 60 + 10 that a save takes at least is 192";
  EXPECT_TRUE(limit.is_up(7, 8));
  limit.save_took(std::nullopt);
  EXPECT_TRUE(limit.is_up(7, 8)) << "none has ended";
  limit.save_took(30);
  EXPECT_FALSE(limit.is_up(4, 8)) << "122 + 40 + 30 is 192";
  EXPECT_TRUE(limit.is_up(5, 8));
  limit.before_save();
  limit.save_goes_on();
  clock.now = 132;
  EXPECT_FALSE(limit.is_up(1, 8)) << "132 + 10 + 20 of the one and 30 of the last is 192";
  EXPECT_TRUE(limit.is_up(2, 8));
}

// Steps of a batch that grows take longer, in proportion to their sequences, until they were measured.
TEST(TimeLimit, LeavesRoomForALargerBatch) {
  Clock clock;
  TimeLimit limit = clock.limit(200);
  limit.begin();
  clock.now = 110;
  limit.after_step(8);  // 10 s
  EXPECT_FALSE(limit.is_up(9, 8));
  EXPECT_FALSE(limit.is_up(4, 16)) << "110 + 4 * 20 is 190";
  EXPECT_TRUE(limit.is_up(5, 16));
  EXPECT_THAT(limit.text(16), HasSubstr("another step (20.0 s)"));
  clock.now = 125;
  limit.after_step(16);  // 15 s
  EXPECT_FALSE(limit.is_up(5, 16)) << "125 + 5 * 15 is 200";
  EXPECT_TRUE(limit.is_up(5, 24)) << "125 + 5 * 22.5 is 237.5";
}

TEST(TimeLimit, OfZeroIsNone) {
  Clock clock;
  TimeLimit limit = clock.limit(0);
  limit.begin();
  clock.now = 1e9;
  limit.after_step(8);
  EXPECT_FALSE(limit.is_up(1000, 8));
}

class RunWithLimit : public testing::TestWithParam<std::string> {
 protected:
  RunWithLimit() { folder_.write("c.toml", tiny_config(GetParam() == "late" ? Layout{1, 1} : Layout{2, 2})); }
  // The rate of a step does not depend on how many there will be.
  Result train(const std::vector<std::string>& values, std::vector<std::string> words = {}) {
    words.insert(words.begin(), {"train", "c.toml"});
    const std::vector<std::string> all = {"run.checkpoint_every=0", "run.log_every=1000",
                                          "optimizer.schedule=\"constant\"", "run.device=\"" + GetParam() + "\""};
    return folder_.orthant(with_set(with_set(words, all), values));
  }
  int last_checkpoint() const {
    int last = -1;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.run() / "checkpoints")) {
      last = std::max(last, std::stoi(entry.path().filename().string().substr(5)));
    }
    return last;
  }
  ProgramFolder folder_;
};

TEST_P(RunWithLimit, SavesEndsAndGoesOnBitwise) {
  const auto begin = std::chrono::steady_clock::now();
  const Result ended = train({"run.steps=1000000", "run.time_limit=3"});
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  ASSERT_EQ(ended.code, 75) << ended.error;
  EXPECT_THAT(ended.output, HasSubstr("run.time_limit = 3 s: "));
  EXPECT_LT(seconds, 30);
  const int step = last_checkpoint();
  EXPECT_THAT(ended.output, HasSubstr(fmt::format("stopped after step {}; go on with --resume auto", step)));
  ASSERT_GT(step, 1);
  const std::string to = fmt::format("run.steps={}", step + 3);
  ASSERT_EQ(train({to, "run.name=\"whole\""}).code, 0);
  const Result rest = train({to, "run.time_limit=1000"}, {"--resume", "auto"});
  ASSERT_EQ(rest.code, 0) << rest.error;
  EXPECT_THAT(rest.error, testing::Not(HasSubstr("warning")));
  EXPECT_THAT(rest.output,
              HasSubstr(fmt::format("resumed from runs/r/checkpoints/step_{:06} after step {}", step, step)));
  EXPECT_THAT(differences(folder_.checkpoint(step + 3), folder_.checkpoint(step + 3, "whole")), IsEmpty());
}

// A limit that has passed before the first step is no reason to get nowhere.
TEST_P(RunWithLimit, MakesAStepAtLeast) {
  EXPECT_EQ(train({"run.steps=8", "run.time_limit=0.001"}).code, 75);
  EXPECT_EQ(last_checkpoint(), 1);
  EXPECT_EQ(train({"run.steps=8", "run.time_limit=0.001"}, {"--resume", "auto"}).code, 75);
  EXPECT_EQ(last_checkpoint(), 2);
}

// The number behind `before` in a text.
double number_behind(const std::string& text, const std::string& before) {
  const std::size_t at = text.find(before);
  return at == std::string::npos ? -1 : std::stod(text.substr(at + before.size()));
}

// Logging and saving take so long here that a run which did not count them would see nothing: its steps take
// milliseconds.
TEST(RunWithSlowDisk, CountsWhatAStepAndASaveTake) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's library wants to be the first that is loaded";
#endif
  ProgramFolder folder;
  folder.write("c.toml", tiny_config({1, 1}));
  for (const char* beside : {"false", "true"}) {
    SCOPED_TRACE(beside);
    double passed = 0, step = 0, save = 0;
    std::string told;
    for (int limit = 4; save <= 0 && limit <= 64; limit *= 4) {  // on a busy machine none may fit into a short one
      const Result ended = folder.orthant(
          with_set({"train", "c.toml"},
                   {"run.steps=1000000", "run.checkpoint_every=1", fmt::format("run.time_limit={}", limit),
                    fmt::format("run.checkpoint_async={}", beside)}),
          {"LD_PRELOAD=" + paths::build("tests/disk_shim.so"),
           "ORTHANT_SHIM=op=write path=metrics.jsonl delay_ms=200;op=fsync path=.tmp/manifest.json delay_ms=500"});
      ASSERT_EQ(ended.code, 75) << ended.output << ended.error;
      told = ended.output;
      passed = number_behind(told, fmt::format("run.time_limit = {} s: ", limit));
      step = number_behind(told, "another step (");
      save = number_behind(told, "a save (");
    }
    EXPECT_GE(step, 0.2) << told;
    EXPECT_GE(save, 0.5) << told;
    EXPECT_LT(save, passed / 2) << "of one save, not since the start: " << told;
  }
}

INSTANTIATE_TEST_SUITE_P(On, RunWithLimit, testing::Values("cpu", "late"), [](const auto& one) { return one.param; });

}  // namespace
}  // namespace orthant::run_test::time_limit_test
