// --resume auto where checkpoints cannot be read, are damaged, renamed or of another run: nothing is started over in
// silence.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test::unusable_checkpoint_test {
namespace {

namespace fs = std::filesystem;
using orthant::launch_test::read_file;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

void damage(const fs::path& file) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(-3, std::ios::end);
  stream.put('\x55');
}

// A disk that does what `rules` say (tests/support/disk_shim.c).
std::vector<std::string> disk(const std::string& rules) {
  return {"LD_PRELOAD=" + paths::build("tests/disk_shim.so"), "ORTHANT_SHIM=" + rules,
          "ASAN_OPTIONS=verify_asan_link_order=0"};
}

class UnusableCheckpoint : public testing::Test {
 protected:
  // A run of two ranks with checkpoints after steps 4 and 8.
  UnusableCheckpoint() {
    folder_.write("c.toml", tiny_config({2, 2}));
    const Result trained = folder_.orthant({"train", "c.toml"});
    EXPECT_EQ(trained.code, 0) << trained.error;
    metrics_ = read_file(folder_.run() / "metrics.jsonl");
  }
  Result resume(const std::string& from = "auto", const std::vector<std::string>& environment = {},
                const std::vector<std::string>& values = {"run.steps=9"}) {
    return folder_.orthant(with_set({"train", "c.toml", "--resume", from}, values), environment);
  }
  // Refused with `code`; the run is as it was.
  void expect_refused(const Result& result, int code) {
    EXPECT_EQ(result.code, code) << result.output << result.error;
    EXPECT_THAT(result.output, Not(HasSubstr("starting at step 1")));
    EXPECT_THAT(result.error, HasSubstr("to begin anew, leave --resume out"));
    EXPECT_EQ(read_file(folder_.run() / "metrics.jsonl"), metrics_);
    EXPECT_FALSE(fs::exists(folder_.run("r.1")));
  }
  ProgramFolder folder_;
  std::string metrics_;
};

TEST_F(UnusableCheckpoint, OneThatCannotBeReadNowIsRefusedWithTheWayToForceIt) {
  const fs::path file = folder_.checkpoint(8) / "rank_00001.safetensors";
  fs::rename(file, folder_.path("away"));
  const auto refused = [&](const Result& result) {
    expect_refused(result, 1);
    EXPECT_THAT(result.error, HasSubstr("runs/r/checkpoints/step_000008/rank_00001.safetensors"));
    EXPECT_THAT(result.error, HasSubstr("--resume runs/r/checkpoints/step_000004"));
  };
  refused(resume());
  fs::create_symlink("/nowhere", file);
  refused(resume());
  fs::remove(file);
  fs::create_directory(file);
  refused(resume());
  fs::remove(file);
  fs::rename(folder_.path("away"), file);
  // Only rank 1 reads this file whole.
  refused(resume("auto", disk("op=read path=rank_00001 rank=1 errno=EIO")));

  const Result older = resume("runs/r/checkpoints/step_000004");
  ASSERT_EQ(older.code, 0) << older.error;
  EXPECT_THAT(older.output, HasSubstr("after step 4"));
}

TEST_F(UnusableCheckpoint, AFolderThatCannotBeListedIsRefused) {
  const Result refused = resume("auto", disk("op=opendir path=runs/r/checkpoints errno=EACCES"));
  expect_refused(refused, 1);
  EXPECT_THAT(refused.error, HasSubstr("cannot list the folder 'runs/r/checkpoints': Permission denied"));
}

TEST_F(UnusableCheckpoint, WhereAllAreDamagedNothingIsStartedOver) {
  damage(folder_.checkpoint(8) / "rank_00001.safetensors");
  damage(folder_.checkpoint(4) / "rank_00000.safetensors");
  const Result refused = resume();
  expect_refused(refused, 78);
  EXPECT_THAT(refused.error, HasSubstr("no checkpoint under runs/r/checkpoints can be used"));
  EXPECT_THAT(refused.error, AllOf(HasSubstr("step_000008/rank_00001"), HasSubstr("step_000004/rank_00000")));
}

// The damaged one is the newest by its name, and must not take the place of those that are written after it.
TEST_F(UnusableCheckpoint, ADamagedOneCostsNoneThatIsWrittenLater) {
  damage(folder_.checkpoint(8) / "rank_00000.safetensors");
  const Result resumed = resume("auto", {}, {"run.steps=6", "run.checkpoint_every=1", "run.keep=1"});
  EXPECT_EQ(resumed.code, 0) << resumed.error;
  EXPECT_TRUE(fs::exists(folder_.checkpoint(6)));
  EXPECT_TRUE(fs::exists(folder_.checkpoint(8)));
  EXPECT_THAT(resume().output, HasSubstr("after step 6"));
}

TEST_F(UnusableCheckpoint, HintsDoNotPromiseADamagedOne) {
  damage(folder_.checkpoint(8) / "rank_00000.safetensors");
  const Result failed = resume("auto", disk("op=open path=metrics.jsonl rank=0 errno=EIO"));
  EXPECT_EQ(failed.code, 1);
  EXPECT_THAT(failed.error, HasSubstr("its newest undamaged checkpoint is runs/r/checkpoints/step_000004: --resume "
                                      "auto goes on from there (not usable: runs/r/checkpoints/step_000008: "));
  const Result fresh = folder_.orthant(with_set({"train", "c.toml"}, {"run.steps=1"}));
  ASSERT_EQ(fresh.code, 0) << fresh.error;
  EXPECT_THAT(fresh.error, HasSubstr("(to go on with it: --resume runs/r.1/checkpoints/step_000004)"));
}

TEST_F(UnusableCheckpoint, ARenamedFolderIsNamedAndPassedOver) {
  fs::rename(folder_.checkpoint(4), folder_.checkpoint(77));
  const Result resumed = resume();
  ASSERT_EQ(resumed.code, 0) << resumed.error;
  EXPECT_THAT(resumed.error, HasSubstr("step_000077: its manifest is of step 4: the folder was renamed"));
  EXPECT_THAT(resumed.output, HasSubstr("after step 8"));
  // By its path it can be used, and leaves the way with what is newer than its step.
  const Result by_path = resume("runs/r/checkpoints/step_000077");
  ASSERT_EQ(by_path.code, 0) << by_path.error;
  EXPECT_THAT(by_path.error, HasSubstr("step_000077 was renamed: its manifest is of step 4"));
  EXPECT_THAT(by_path.output, HasSubstr("after step 4"));
  EXPECT_TRUE(fs::exists(folder_.run() / "checkpoints.1/step_000077"));
}

TEST_F(UnusableCheckpoint, UnderANameThatIsNoStepItIsNamedAndNothingIsStartedOver) {
  fs::rename(folder_.checkpoint(4), folder_.run() / "checkpoints/best");
  fs::create_directory_symlink("step_000008", folder_.run() / "checkpoints/latest");
  const std::string way =
      "checkpoints/best: its manifest is of step 4: the folder was renamed. It can be used by its "
      "path: --resume runs/r/checkpoints/best";
  const Result resumed = resume("auto", {}, {"run.steps=8"});
  ASSERT_EQ(resumed.code, 0) << resumed.error;
  EXPECT_THAT(resumed.error, AllOf(HasSubstr(way), Not(HasSubstr("latest"))));
  EXPECT_THAT(resumed.output, HasSubstr("after step 8"));
  fs::remove(folder_.run() / "checkpoints/latest");
  fs::remove_all(folder_.checkpoint(8));
  const Result refused = resume();
  expect_refused(refused, 78);
  EXPECT_THAT(refused.error, AllOf(HasSubstr("no checkpoint under runs/r/checkpoints can be used"), HasSubstr(way)));
  const Result by_path = resume("runs/r/checkpoints/best");
  ASSERT_EQ(by_path.code, 0) << by_path.error;
  EXPECT_THAT(by_path.output, HasSubstr("after step 4"));
}

TEST_F(UnusableCheckpoint, OfARunFolderTheNewestCheckpointIsAdvised) {
  const std::string newest = "its newest checkpoint is runs/r/checkpoints/step_000008: give that";
  for (const auto& [given, what] : {std::pair("runs/r", "run"), std::pair("runs/r/checkpoints/", "checkpoints")}) {
    const Result own = resume(given);
    EXPECT_EQ(own.code, 78);
    EXPECT_THAT(own.error, HasSubstr(fmt::format("--resume {}: that is a {} folder; {}, or use --resume auto", given,
                                                 what, newest)));
    const Result other = resume(given, {}, {"run.name=\"s\""});
    EXPECT_EQ(other.code, 78);
    EXPECT_THAT(other.error, AllOf(HasSubstr(newest), Not(HasSubstr("--resume auto"))));
  }
}

TEST_F(UnusableCheckpoint, OneOfAnotherRunIsRefusedByName) {
  ASSERT_EQ(folder_.orthant(with_set({"train", "c.toml"}, {"run.name=\"s\"", "run.seed=5", "run.steps=9"})).code, 0);
  fs::copy(folder_.checkpoint(9, "s"), folder_.checkpoint(9), fs::copy_options::recursive);
  const std::string id = lines_of(folder_.run("s") / "config.resolved.toml").at(0).substr(11);
  for (const std::string from : {"auto", "runs/r/checkpoints/step_000009"}) {
    const Result refused = resume(from, {}, {"run.steps=12"});
    EXPECT_EQ(refused.code, 78) << refused.error;
    EXPECT_THAT(refused.error, HasSubstr("runs/r/checkpoints/step_000009 is of another run (" + id + ")"));
    EXPECT_THAT(refused.error, HasSubstr("it was copied there, or two jobs have written there"));
    EXPECT_EQ(read_file(folder_.run() / "metrics.jsonl"), metrics_);
  }
  // A run of another name may start from it, and has an id of its own.
  const Result other = resume("runs/r/checkpoints/step_000009", {}, {"run.name=\"t\"", "run.steps=10"});
  ASSERT_EQ(other.code, 0) << other.error;
  EXPECT_THAT(read_file(folder_.run("t") / "config.resolved.toml"), Not(HasSubstr(id)));
  EXPECT_THAT(read_file(folder_.checkpoint(10, "t") / "manifest.json"), Not(HasSubstr(id)));
}

// Checkpoints and folders from before there were ids.
TEST_F(UnusableCheckpoint, WithoutIdsItLoadsAsBefore) {
  const fs::path config = folder_.run() / "config.resolved.toml";
  std::string text = read_file(config);
  folder_.write("runs/r/config.resolved.toml", text.substr(text.find("[run]")));
  const Result resumed = resume();
  ASSERT_EQ(resumed.code, 0) << resumed.error;
  // The folder has taken the checkpoint's id.
  EXPECT_THAT(read_file(config), HasSubstr(text.substr(0, text.find('\n'))));
}

// Rank 0 alone would read every byte of every rank.
TEST_F(UnusableCheckpoint, EachRankVerifiesItsShare) {
  // Shards, so that what a rank loads is in its own file.
  const Result trained = folder_.orthant(with_set({"train", "c.toml"}, {"plugins.data.zero=1"}));
  ASSERT_EQ(trained.code, 0) << trained.error;
  for (const int rank : {0, 1}) {
    const std::string log = folder_.path(fmt::format("log{}", rank)).string();
    const Result resumed = resume("auto", disk(fmt::format("op=read path=step_000008/rank_ rank={} log={}", rank, log)),
                                  {"plugins.data.zero=1"});
    ASSERT_EQ(resumed.code, 0) << resumed.error;
    const std::string reads = read_file(log);
    EXPECT_THAT(reads, HasSubstr(fmt::format("rank_0000{}", rank)));
  }
  EXPECT_THAT(read_file(folder_.path("log0")), Not(HasSubstr("rank_00001")));
}

}  // namespace
}  // namespace orthant::run_test::unusable_checkpoint_test
