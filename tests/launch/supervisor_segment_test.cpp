// The supervisor with the memory that ranks share: who is at fault, by what the ranks themselves found.
#include "parallel/launch/supervisor.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <new>
#include <optional>
#include <sstream>
#include <string_view>

#include "parallel/process_state.h"
#include "tests/support/run_supervisor.h"

namespace orthant::launch_test::supervisor_segment_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

// A segment that only remembers what it was told, in memory that the supervisor's process shares with the test.
struct Told {
  std::atomic<int> first{-1};
  std::atomic<int> step{-1};
  std::atomic<int> excused{0};
  char why[200] = {};
};

class RememberingSegment : public RankSegment {
 public:
  explicit RememberingSegment(Told& told) : told_(told), descriptor_(memfd_create("test", MFD_CLOEXEC)) {
    [[maybe_unused]] const ssize_t written = write(descriptor_, "shared words\n", 13);
    lseek(descriptor_, 0, SEEK_SET);
  }
  ~RememberingSegment() override { close(descriptor_); }
  int descriptor() const override { return descriptor_; }
  void mark_failed(int rank, const std::string& why) noexcept override {
    int none = -1;
    if (told_.first.compare_exchange_strong(none, rank)) {
      why.copy(told_.why, sizeof(told_.why) - 1);
    }
  }
  std::optional<RankFailure> failure() const override {
    return told_.first < 0 ? std::nullopt : std::optional(RankFailure{told_.first, told_.why});
  }
  std::int64_t step(int rank) const override { return rank == 0 ? told_.step.load() : -1; }
  void excuse_silence() noexcept override { ++told_.excused; }

 private:
  Told& told_;
  int descriptor_;
};

class SupervisorWithSegment : public ::testing::Test {
 protected:
  SupervisorWithSegment()
      : told_(*new (mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Told) {}
  ~SupervisorWithSegment() override { munmap(&told_, sizeof(Told)); }

  LaunchPlan plan(const std::filesystem::path& folder, int ranks, const std::string& script) {
    LaunchPlan plan = shell_plan(folder, ranks, script);
    plan.make_segment = [this](int) { return std::make_unique<RememberingSegment>(told_); };
    return plan;
  }

  Told& told_;
};

TEST_F(SupervisorWithSegment, RanksInheritItsDescriptor) {
  TemporaryFolder folder;
  const Result result = run_to_end(folder.path(), plan(folder.path(), 1, "cat <&$ORTHANT_LOCAL_FD"));
  EXPECT_THAT(result.output, HasSubstr("[r0] shared words"));
}

TEST_F(SupervisorWithSegment, IsToldWhoDiedAndHow) {
  TemporaryFolder folder;
  run_to_end(folder.path(), plan(folder.path(), 2, "[ $ORTHANT_RANK = 1 ] && kill -SEGV $$; sleep 60"));
  EXPECT_EQ(told_.first, 1);
  EXPECT_STREQ(told_.why, "rank 1 was killed by signal 11 (Segmentation fault)");
}

TEST_F(SupervisorWithSegment, ARankThatSaidSoItselfIsTheFirstThoughOthersEndedBefore) {
  TemporaryFolder folder;
  // Rank 1 has told the segment why it fails, and ends last.
  told_.first = 1;
  LaunchPlan late = plan(folder.path(), 3, "[ $ORTHANT_RANK = 1 ] && { sleep 0.4; exit 5; }; exit 1");
  late.notice_seconds = 5;
  const Result result = run_to_end(folder.path(), late);
  EXPECT_EQ(result.code, 5);
  EXPECT_THAT(result.error, HasSubstr("rank 1 failed first: it ended with code 5"));
}

// Ranks write their process numbers to folder/pid_RANK.
const char* const kWritePid = "echo $$ > $F/p$ORTHANT_RANK; mv $F/p$ORTHANT_RANK $F/pid_$ORTHANT_RANK; ";
const char* const kAwaitGo = "while [ ! -e $F/go ]; do sleep 0.01; done; ";

bool state_becomes(const std::filesystem::path& folder, int rank, std::string_view states) {
  return eventually([&] {
    pid_t pid = 0;
    std::istringstream(read_file(folder / fmt::format("pid_{}", rank))) >> pid;
    return pid > 0 && states.find(process_state(pid)) != std::string_view::npos;
  });
}

TEST_F(SupervisorWithSegment, AStoppedRankIsTheFirstThoughOthersEnd) {
  TemporaryFolder folder;
  const LaunchPlan stuck =
      plan(folder.path(), 3,
           std::string(kWritePid) + "[ $ORTHANT_RANK = 1 ] && { echo before; kill -STOP $$; }; " + kAwaitGo + "exit 7");
  Running running(folder.path(), [&] { return supervise(stuck); });
  ASSERT_TRUE(state_becomes(folder.path(), 1, "T"));
  std::string("rank 1 did not arrive").copy(told_.why, sizeof(told_.why) - 1);
  told_.first = 1;
  std::ofstream(folder.path() / "go") << "\n";
  EXPECT_EQ(running.wait(), 1) << "neither that of a rank which gave up nor of what we ended it by";
  EXPECT_THAT(running.error(), HasSubstr("launch: rank 1 failed first: it is stopped (state T)\n"));
  EXPECT_THAT(running.error(), HasSubstr("launch: rank 1 did not arrive\n"));
  EXPECT_THAT(running.error(), HasSubstr("  [r1] before\n"));
  EXPECT_THAT(running.error(), Not(HasSubstr("rank 0 failed first")));
}

TEST_F(SupervisorWithSegment, ManyRanksThatGiveUpForOneReasonAreOneMessage) {
  TemporaryFolder folder;
  const std::string reason = "rank 3 cannot write its part of the checkpoint: No space left on device";
  reason.copy(told_.why, sizeof(told_.why) - 1);
  told_.first = 3;
  LaunchPlan many = plan(folder.path(), 12,
                         "r=\"" + reason + "\"; if [ $ORTHANT_RANK = 3 ]; then echo \"orthant: $r\" >&2; else " +
                             "echo \"orthant: barrier #$ORTHANT_RANK was given up: $r\" >&2; fi; exit 1");
  many.notice_seconds = many.grace_seconds = 20;
  const Result result = run_to_end(folder.path(), many);
  EXPECT_EQ(result.code, 1);
  // The rank itself, one of those that gave up, and the last lines of the rank at the end.
  EXPECT_LE(count_of(result.error, reason), 3) << result.error;
  EXPECT_THAT(result.error, HasSubstr("[r3] orthant: " + reason));
  EXPECT_THAT(result.error, HasSubstr("gave up for the same reason"));
  for (int rank = 0; rank < 12; ++rank) {
    EXPECT_THAT(read_file(folder.path() / fmt::format("run/logs/rank_{}.log", rank)), HasSubstr(reason));
  }
}

TEST_F(SupervisorWithSegment, CtrlZPausesTheRanksAsWell) {
  TemporaryFolder folder;
  const LaunchPlan paused = plan(folder.path(), 2, std::string(kWritePid) + kAwaitGo + "exit 0");
  Running running(folder.path(), [&] { return supervise(paused); });
  ASSERT_TRUE(state_becomes(folder.path(), 0, "S") && state_becomes(folder.path(), 1, "S"));
  kill(running.pid(), SIGTSTP);
  EXPECT_TRUE(eventually([&] { return process_state(running.pid()) == 'T'; }));
  // D: a shell that waits in vfork for its child, which is stopped.
  EXPECT_TRUE(state_becomes(folder.path(), 0, "TD") && state_becomes(folder.path(), 1, "TD"));
  std::ofstream(folder.path() / "go") << "\n";
  kill(running.pid(), SIGCONT);
  EXPECT_EQ(running.wait(), 0) << running.error();
  EXPECT_EQ(told_.excused, 1);
}

TEST_F(SupervisorWithSegment, AStepThatFailsTwiceInTheSameWayIsNotTriedAgain) {
  TemporaryFolder folder;
  LaunchPlan doomed = plan(folder.path(), 1, "echo \"loss is not finite after $$ s\" >&2; exit 3");
  doomed.max_restarts = 9;
  doomed.restart_command = doomed.command;
  told_.step = 41;
  const Result result = run_to_end(folder.path(), doomed);
  EXPECT_EQ(result.code, 3);
  EXPECT_EQ(count_of(result.error, "launch: restart "), 1) << result.error;
  EXPECT_THAT(result.error, HasSubstr("launch: step 42 failed twice in the same way"));
}

}  // namespace
}  // namespace orthant::launch_test::supervisor_segment_test
