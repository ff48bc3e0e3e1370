// A disk under a whole run that is slow, full or broken (tests/support/disk_shim.c), and what of it is safe by when.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/checkpoint/checkpoint.h"
#include "tests/run/unfinished_saves.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test::slow_disk_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class SlowDisk : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a sanitizer's library wants to be the first that is loaded";
#endif
    folder_.write("c.toml", tiny_config({2, 1}));
  }
  // Four steps, a checkpoint after the second and the last.
  Result train(const std::string& shim, const std::vector<std::string>& values = {},
               const std::vector<std::string>& words = {}) const {
    std::vector<std::string> all = {"launch", "c.toml"};
    all.insert(all.end(), words.begin(), words.end());
    return folder_.orthant(with_set(with_set(all, {"run.steps=4", "run.checkpoint_every=2"}), values),
                           {"LD_PRELOAD=" + paths::build("tests/disk_shim.so"), "ORTHANT_SHIM=" + shim});
  }
  std::vector<std::string> unfinished() const {
    return unfinished_saves(folder_.run());
  }
  ProgramFolder folder_;
};

// Twice as long as ranks wait for one another; the rank that is slow is the one that the others wait for.
TEST_F(SlowDisk, ASaveThatTakesLongIsNoStuckRank) {
  const Result result = train(
      "op=fsync path=step_000002.tmp/rank_00001 delay_ms=2500;"
      "op=fsync path=step_000004.tmp/manifest.json delay_ms=2500",
      {"run.timeout_seconds=1"});
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_THAT(result.error, Not(HasSubstr("stuck")));
  EXPECT_TRUE(fs::exists(folder_.checkpoint(4)));
}

TEST_F(SlowDisk, ALoadThatTakesLongIsNoStuckRank) {
  ASSERT_EQ(train("").code, 0);
  const Result result = train("op=mmap path=step_000004/rank rank=1 count=1 delay_ms=2500",
                              {"run.timeout_seconds=1", "run.steps=5"}, {"--resume", "auto"});
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_THAT(result.output, HasSubstr("after step 4"));
}

TEST_F(SlowDisk, ADiskThatTakesTooLongEndsTheRun) {
  const Result result = train("op=fsync path=step_000002.tmp/rank_00001 delay_ms=5000",
                              {"run.timeout_seconds=1", "run.disk_timeout_seconds=1"});
  EXPECT_EQ(result.code, 1) << result.output;
  EXPECT_THAT(result.error, HasSubstr("rank 1"));
}

// Removing an old checkpoint takes longer here than ranks wait for one another.
TEST_F(SlowDisk, PruningHoldsUpNobodyAndItsFailureIsAWarning) {
  const std::vector<std::string> values = {"run.keep=1", "run.timeout_seconds=1", "run.checkpoint_every=1"};
  const Result slow = train("op=unlink path=step_ delay_ms=300", values);
  EXPECT_EQ(slow.code, 0) << slow.error;
  EXPECT_THAT(slow.error, Not(HasSubstr("old checkpoints")));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.run() / "checkpoints"), {}), 1);

  const Result broken = train("op=unlink path=step_000002 errno=ESTALE", values);
  EXPECT_EQ(broken.code, 0) << broken.error;
  EXPECT_THAT(broken.error, AllOf(HasSubstr("warning: old checkpoints of runs/r/checkpoints stay"),
                                  HasSubstr("step_000002.tmp"), HasSubstr("Stale file handle")));
  EXPECT_EQ(latest_checkpoint(folder_.run() / "checkpoints"), folder_.checkpoint(4));
  EXPECT_FALSE(fs::exists(folder_.checkpoint(1))) << "what can be removed is";
  EXPECT_FALSE(fs::exists(folder_.checkpoint(3)));
}

// Whatever fails, on whichever rank: the reason is said once, the checkpoint before is whole, the disk gets its room.
TEST_F(SlowDisk, AFailedSaveSaysWhyAndLeavesNothingHalf) {
  for (const char* fault :
       {"op=write path=step_000004.tmp/rank_00001 errno=ENOSPC",
        "op=fsync path=step_000004.tmp/rank_00000 errno=ENOSPC", "op=write path=step_000004.tmp/manifest errno=ENOSPC",
        "op=rename path=step_000004.tmp errno=ENOSPC"}) {
    const Result result = train(fault);
    EXPECT_EQ(result.code, 1) << fault;
    EXPECT_THAT(result.error, AllOf(HasSubstr("step_000004.tmp"), HasSubstr("No space left on device"))) << fault;
    EXPECT_THAT(result.error, Not(HasSubstr("stuck"))) << fault;
    EXPECT_EQ(latest_checkpoint(folder_.run() / "checkpoints"), folder_.checkpoint(2)) << fault;
    EXPECT_THAT(unfinished(), IsEmpty()) << fault;
  }
  const Result room_again = train("", {}, {"--resume", "auto"});
  EXPECT_EQ(room_again.code, 0) << room_again.error;
  EXPECT_EQ(latest_checkpoint(folder_.run() / "checkpoints"), folder_.checkpoint(4));
}

// The lines of a shim's log, in which operations are looked for one after the other.
class Log {
 public:
  explicit Log(const fs::path& file) : lines_(lines_of(file)) {}
  void from_start() { at_ = 0; }
  testing::AssertionResult then(const std::string& operation, const std::string& end) {
    for (const std::size_t before = at_;
         at_ == lines_.size() || !(lines_[at_].starts_with(operation + " ") && lines_[at_].ends_with(end));) {
      if (at_ == lines_.size() || ++at_ == lines_.size()) {
        return testing::AssertionFailure() << "no " << operation << " of " << end << " after line " << before << " of "
                                           << testing::PrintToString(lines_);
      }
    }
    return testing::AssertionSuccess();
  }

 private:
  std::vector<std::string> lines_;
  std::size_t at_ = 0;
};

// What a power failure must find: a checkpoint is complete before it gets its name, and so are the lines of metrics
// that lead up to it; each folder is known to the one above.
TEST_F(SlowDisk, WhatMustLastIsSyncedBeforeWhatRestsOnIt) {
  const Result result = train("op=mkdir,fsync,rename path=r log=" + folder_.path("log").string());
  ASSERT_EQ(result.code, 0) << result.error;
  Log log(folder_.path("log"));
  ASSERT_TRUE(log.then("fsync", "/runs/r/config.resolved.toml.tmp"));
  ASSERT_TRUE(log.then("rename", "runs/r/config.resolved.toml"));
  ASSERT_TRUE(log.then("fsync", "/runs/r"));  // holds metrics.jsonl too
  ASSERT_TRUE(log.then("fsync", "/runs"));
  ASSERT_TRUE(log.then("fsync", folder_.path().filename().string()));
  for (const std::string& step : {std::string("/step_000002"), std::string("/step_000004")}) {
    ASSERT_TRUE(log.then("fsync", "/runs/r/metrics.jsonl"));
    ASSERT_TRUE(log.then("mkdir", step + ".tmp"));
    ASSERT_TRUE(log.then("fsync", step + ".tmp/manifest.json"));
    ASSERT_TRUE(log.then("fsync", step + ".tmp"));
    ASSERT_TRUE(log.then("rename", step));
    ASSERT_TRUE(log.then("fsync", "/runs/r/checkpoints"));
  }
  // Whichever rank makes the folder, and each rank's file, before there is a manifest.
  for (const std::vector<std::string>& of : {std::vector<std::string>{"/checkpoints", "/runs/r"},
                                             {"/step_000002.tmp", "/step_000002.tmp/rank_00000.safetensors"},
                                             {"/step_000002.tmp", "/step_000002.tmp/rank_00001.safetensors"}}) {
    log.from_start();
    ASSERT_TRUE(log.then("mkdir", of[0]));
    ASSERT_TRUE(log.then("fsync", of[1]));
    ASSERT_TRUE(log.then("fsync", "/step_000002.tmp/manifest.json"));
  }
}

// Tokens that a power failure turned to zeros would be trained on.
TEST_F(SlowDisk, PreparedTokensAreWholeBeforeTheyHaveTheirName) {
  folder_.write("text.txt", "some text, some more text");
  const auto prepare = [&](const std::string& shim) {
    return folder_.orthant({"data", "prepare", "text.txt", "-o", folder_.path("made.tok").string()},
                           {"LD_PRELOAD=" + paths::build("tests/disk_shim.so"), "ORTHANT_SHIM=" + shim});
  };
  const Result broken = prepare("op=fsync path=made.tok errno=EIO");
  EXPECT_EQ(broken.code, 1);
  EXPECT_THAT(broken.error, AllOf(HasSubstr("made.tok"), HasSubstr("Input/output error")));
  EXPECT_FALSE(fs::exists(folder_.path("made.tok")) || fs::exists(folder_.path("made.tok.partial")));

  const Result made = prepare("op=fsync,rename path=/ log=" + folder_.path("log").string());
  ASSERT_EQ(made.code, 0) << made.error;
  Log log(folder_.path("log"));
  ASSERT_TRUE(log.then("fsync", "made.tok.partial"));
  ASSERT_TRUE(log.then("rename", "made.tok"));
  ASSERT_TRUE(log.then("fsync", folder_.path().filename().string()));
}

}  // namespace
}  // namespace orthant::run_test::slow_disk_test
