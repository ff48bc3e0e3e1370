// Whole runs whose offloaded tensors are lost: a rank is killed, a file is cut, the disk is full or breaks. The run
// ends and says where, the last checkpoint is whole, and nothing is left behind.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include "tests/offload/child_process.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::offload_failure_test {
namespace {

using launch_test::eventually;
using launch_test::Running;
using offload_test::in_child;
using offload_test::refuse_calls;
using run_test::ProgramFolder;
using run_test::Result;
using run_test::with_set;
using testing::AllOf;
using testing::HasSubstr;

namespace fs = std::filesystem;

class OffloadFailure : public testing::Test {
 protected:
  OffloadFailure() {
    fs::create_directory(scratch());
    folder_.write("c.toml", run_test::tiny_config({.data = 2}) +
                                fmt::format("[plugins.offload]\nstates = \"nvme\"\ngradients = \"nvme\"\nweights = "
                                            "\"nvme\"\nactivations = \"nvme\"\ndirectory = \"{}\"\n",
                                            scratch().string()));
  }
  fs::path scratch() const { return folder_.path("scratch"); }

  // Two ranks that train on and on, and have saved at least once.
  std::unique_ptr<Running> start_long() const {
    std::unique_ptr<Running> run = folder_.start(with_set(
        {paths::program(), "launch", "c.toml"}, {"run.steps=1000000", "run.checkpoint_every=2", "run.log_every=1"}));
    EXPECT_TRUE(eventually([&] { return newest() > 0; })) << run->output() << run->error();
    return run;
  }
  // The step of the last checkpoint; 0: there is none.
  int newest() const {
    int last = 0;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(folder_.checkpoint(2).parent_path(), none)) {
      const std::string name = entry.path().filename();
      if (name.starts_with("step_") && entry.path().extension().empty()) {
        last = std::max(last, std::stoi(name.substr(5)));
      }
    }
    return last;
  }
  void expect_resumes() const {
    EXPECT_TRUE(fs::is_empty(scratch()));
    const int last = newest();
    ASSERT_GT(last, 0);
    const Result result = folder_.orthant(with_set({"launch", "c.toml", "--resume", "auto"},
                                                   {fmt::format("run.steps={}", last + 2), "run.checkpoint_every=2"}));
    EXPECT_EQ(result.code, 0) << result.output << result.error;
    EXPECT_TRUE(fs::exists(folder_.checkpoint(last + 2)));
  }
  // The files without a name of a process, in the scratch folder.
  std::vector<fs::path> files_of(pid_t process) const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(fmt::format("/proc/{}/fd", process))) {
      std::error_code gone;
      const std::string target = fs::read_symlink(entry.path(), gone);
      if (target.starts_with(scratch().string()) && target.ends_with("(deleted)")) {
        files.push_back(entry.path());
      }
    }
    return files;
  }
  // `orthant launch` for a few steps, where the system refuses some calls; "no filter" where that cannot be tried.
  std::string launch_with(const std::vector<offload_test::Refusal>& refusals) const {
    return in_child([&]() -> std::string {
      if (!refuse_calls(refusals)) {
        return "no filter";
      }
      const Result result = folder_.orthant(with_set({"launch", "c.toml"}, {"run.steps=3"}));
      return fmt::format("code {}: {}{}", result.code, result.output, result.error);
    });
  }

  ProgramFolder folder_;
};

TEST_F(OffloadFailure, AKilledRankIsNamedAndLeavesNothing) {
  const std::unique_ptr<Running> run = start_long();
  kill(run_test::ranks_of(run->pid()).at(1), SIGKILL);
  EXPECT_EQ(run->wait(), 128 + SIGKILL);
  EXPECT_THAT(run->error(), HasSubstr("rank 1"));
  expect_resumes();
}

TEST_F(OffloadFailure, AFileThatSomebodyCutsEndsTheRun) {
  const std::unique_ptr<Running> run = start_long();
  const std::vector<fs::path> files = files_of(run_test::ranks_of(run->pid()).at(1));
  ASSERT_FALSE(files.empty());
  // Again and again: what is cut between a read and the next write is whole again, and nobody has missed it.
  bool there = true;
  for (int cut = 0; cut < 500 && there; ++cut) {
    for (const fs::path& file : files) {
      const int open_file = open(file.c_str(), O_WRONLY | O_CLOEXEC);
      there = there && open_file >= 0;
      if (open_file >= 0) {
        EXPECT_EQ(ftruncate(open_file, 0), 0);
        close(open_file);
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
  EXPECT_NE(run->wait(), 0);
  EXPECT_THAT(run->error(), AllOf(HasSubstr("rank 1: "), HasSubstr(scratch().string())));
  expect_resumes();
}

TEST_F(OffloadFailure, ADiskWithoutRoomIsSaidBeforeTheFirstStep) {
  const std::string said = launch_with({{SYS_fallocate, ENOSPC}});
  if (said == "no filter") {
    GTEST_SKIP() << said;
  }
  EXPECT_THAT(said, AllOf(HasSubstr("No space left on device"), HasSubstr(scratch().string())));
  EXPECT_THAT(said, testing::Not(HasSubstr("step 1/3")));
  EXPECT_THAT(said, testing::Not(HasSubstr("code 0")));
  EXPECT_TRUE(fs::is_empty(scratch()));
}

TEST_F(OffloadFailure, ADiskThatCannotBeReadEndsTheRun) {
  constexpr unsigned large = 0xfffff000;  // whole pages: the loader of programs reads less
  const std::string said = launch_with({{SYS_io_uring_setup, EPERM}, {SYS_pread64, EIO, 2, large}});
  if (said == "no filter") {
    GTEST_SKIP() << said;
  }
  EXPECT_THAT(said, AllOf(HasSubstr("Input/output error"), HasSubstr("rank "), HasSubstr(scratch().string())));
  EXPECT_THAT(said, testing::Not(HasSubstr("code 0")));
  EXPECT_TRUE(fs::is_empty(scratch()));
}

}  // namespace
}  // namespace orthant::offload_failure_test
