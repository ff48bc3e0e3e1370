#include "parallel/launch/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/error.h>

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <sstream>

#include "tests/support/run_supervisor.h"

namespace orthant::launch_test::supervisor_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

int count_lines(const std::string& text, const std::string& part) {
  std::istringstream lines(text);
  std::string line;
  int count = 0;
  while (std::getline(lines, line)) {
    count += line.find(part) != std::string::npos ? 1 : 0;
  }
  return count;
}

// The pids that ranks wrote to folder/pid_RANK (first line: the rank; second: a process it started).
std::vector<pid_t> pids_of(const std::filesystem::path& folder, int ranks) {
  std::vector<pid_t> pids;
  for (int rank = 0; rank < ranks; ++rank) {
    std::istringstream text(read_file(folder / ("pid_" + std::to_string(rank))));
    for (pid_t pid = 0; text >> pid;) {
      pids.push_back(pid);
    }
  }
  return pids;
}

// Becomes ready by renaming, so that no reader sees half a file.
const char* const kWritePid = "echo $$ > $F/p$ORTHANT_RANK; mv $F/p$ORTHANT_RANK $F/pid_$ORTHANT_RANK; ";

TEST(Supervisor, PrefixesLinesAndWritesLogs) {
  TemporaryFolder folder;
  const Result result = run_to_end(
      folder.path(), shell_plan(folder.path(), 3, "echo hello from $ORTHANT_RANK; echo oops >&2; printf end"));
  EXPECT_EQ(result.code, 0);
  for (int rank = 0; rank < 3; ++rank) {
    const std::string number = std::to_string(rank);
    EXPECT_EQ(count_lines(result.output, "[r" + number + "] hello from " + number), 1) << result.output;
    EXPECT_EQ(count_lines(result.output, "[r" + number + "] end"), 1) << result.output;
    EXPECT_EQ(count_lines(result.error, "[r" + number + "] oops"), 1) << result.error;
    const std::string log = read_file(folder.path() / "run/logs" / ("rank_" + number + ".log"));
    EXPECT_THAT(log, HasSubstr("hello from " + number + "\n"));
    EXPECT_THAT(log, HasSubstr("oops\n"));
    EXPECT_THAT(log, HasSubstr("end\n"));
  }
}

TEST(Supervisor, TellsEachRankWhoItIs) {
  TemporaryFolder folder;
  LaunchPlan plan =
      shell_plan(folder.path(), 2,
                 "echo $ORTHANT_RANK/$ORTHANT_WORLD_SIZE/$ORTHANT_LOCAL_RANK/$ORTHANT_RUN_DIR/$EXTRA/$ORTHANT_TTY.");
  plan.environment.emplace_back("EXTRA", "more");
  plan.world_size = 8;
  plan.first_rank = 5;
  plan.first_local_rank = 1;
  const Result result = run_to_end(folder.path(), plan);
  const std::string run = (folder.path() / "run").string();
  EXPECT_THAT(result.output, HasSubstr("[r5] 5/8/1/" + run + "/more/."));
  EXPECT_THAT(result.output, HasSubstr("[r6] 6/8/2/" + run + "/more/."));
}

TEST(Supervisor, NamesTheRankThatWasKilledAndItsLastLines) {
  TemporaryFolder folder;
  const Result result =
      run_to_end(folder.path(),
                 shell_plan(folder.path(), 3,
                            "if [ $ORTHANT_RANK = 1 ]; then for i in $(seq 30); do echo line $i; done; kill -9 $$; fi; "
                            "sleep 60"));
  EXPECT_EQ(result.code, 128 + SIGKILL);
  EXPECT_THAT(result.error, HasSubstr("rank 1 failed first: it was killed by signal 9 (Killed)"));
  EXPECT_EQ(count_lines(result.error, "[r1] line"), 20) << result.error;
  EXPECT_EQ(count_lines(result.error, "[r1] line 11"), 1);
  EXPECT_EQ(count_lines(result.error, "[r1] line 30"), 1);
  EXPECT_THAT(result.error, HasSubstr("rank_1.log"));
}

TEST(Supervisor, ExitsWithTheCodeOfTheFirstFailure) {
  TemporaryFolder folder;
  // Rank 2 fails by itself; the others fail with another code when they are told to end.
  const Result result = run_to_end(folder.path(), shell_plan(folder.path(), 3,
                                                             "trap 'exit 1' TERM; [ $ORTHANT_RANK = 2 ] && exit 41; "
                                                             "while :; do sleep 0.05; done"));
  EXPECT_EQ(result.code, 41);
  EXPECT_THAT(result.error, HasSubstr("rank 2 failed first: it ended with code 41"));
}

TEST(Supervisor, KillsRanksThatIgnoreSigterm) {
  TemporaryFolder folder;
  LaunchPlan plan =
      shell_plan(folder.path(), 2, "trap '' TERM; [ $ORTHANT_RANK = 1 ] && exit 3; while :; do sleep 0.05; done");
  const Result result = run_to_end(folder.path(), plan);
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.error, HasSubstr("killing it"));
}

// Whether another launcher's rank failed before it is not known here.
TEST(Supervisor, ARankAmongThoseOfOtherLaunchersIsNotSaidToBeTheFirst) {
  TemporaryFolder folder;
  LaunchPlan plan = shell_plan(folder.path(), 1, "echo only; exit 3");
  plan.world_size = 4;
  plan.first_rank = 2;
  const Result result = run_to_end(folder.path(), plan);
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.error, HasSubstr("launch: rank 2 failed: it ended with code 3\n"));
  EXPECT_THAT(result.error, HasSubstr("launch: its last line (all of them: "));
}

TEST(Supervisor, ABadConfigurationIsNotRestarted) {
  TemporaryFolder folder;
  LaunchPlan plan = shell_plan(folder.path(), 2, "exit 78");
  plan.max_restarts = 3;
  plan.restart_command = plan.command;
  const Result result = run_to_end(folder.path(), plan);
  EXPECT_EQ(result.code, 78);
  EXPECT_THAT(result.error, Not(HasSubstr("restart")));
}

TEST(Supervisor, StoppedRanksEndWith75AndAreNotRestarted) {
  TemporaryFolder folder;
  LaunchPlan plan = shell_plan(folder.path(), 2, "exit 75");
  plan.max_restarts = 3;
  plan.restart_command = plan.command;
  const Result result = run_to_end(folder.path(), plan);
  EXPECT_EQ(result.code, 75);
  EXPECT_THAT(result.error, Not(HasSubstr("restart")));
}

TEST(Supervisor, RestartsWithTheOtherCommandAndKeepsTheLogs) {
  TemporaryFolder folder;
  LaunchPlan plan = shell_plan(folder.path(), 2, "echo first; [ $ORTHANT_RANK = 1 ] && exit 9; sleep 60");
  plan.max_restarts = 2;
  plan.restart_command = {"sh", "-c", "echo second"};
  const Result result = run_to_end(folder.path(), plan);
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(count_lines(result.error, "launch: restart 1 of 2"), 1) << result.error;
  EXPECT_EQ(read_file(folder.path() / "run/logs/rank_1.log"), "first\nsecond\n");
}

TEST(Supervisor, GivesUpAfterTheLastRestart) {
  TemporaryFolder folder;
  LaunchPlan plan = shell_plan(folder.path(), 1, "echo again; exit 9");
  plan.max_restarts = 2;
  plan.restart_command = plan.command;
  const Result result = run_to_end(folder.path(), plan);
  EXPECT_EQ(result.code, 9);
  EXPECT_EQ(count_lines(result.output, "again"), 3);
}

TEST(Supervisor, ANewRunStartsNewLogsAndAResumedOneAppends) {
  TemporaryFolder folder;
  LaunchPlan plan = shell_plan(folder.path(), 1, "echo one");
  run_to_end(folder.path(), plan);
  run_to_end(folder.path(), plan);
  EXPECT_EQ(read_file(folder.path() / "run/logs/rank_0.log"), "one\n");
  plan.append_logs = true;
  run_to_end(folder.path(), plan);
  EXPECT_EQ(read_file(folder.path() / "run/logs/rank_0.log"), "one\none\n");
}

TEST(Supervisor, ForwardsASignalAndWaitsForTheRanksToSave) {
  for (const int number : {SIGINT, SIGTERM, SIGUSR1}) {
    TemporaryFolder folder;
    const LaunchPlan plan = shell_plan(
        folder.path(), 2,
        std::string("trap 'sleep 0.3; echo saved; exit 75' TERM; ") + kWritePid + "while :; do sleep 0.05; done");
    Running running(folder.path(), [&] { return supervise(plan); });
    ASSERT_TRUE(eventually([&] { return pids_of(folder.path(), 2).size() == 2; }));
    kill(running.pid(), number);
    EXPECT_EQ(running.wait(), 75);
    EXPECT_EQ(count_lines(running.output(), "saved"), 2) << running.error();
  }
}

TEST(Supervisor, ASecondSignalKills) {
  TemporaryFolder folder;
  const LaunchPlan plan =
      shell_plan(folder.path(), 2, std::string("trap 'echo told' TERM; ") + kWritePid + "while :; do sleep 0.05; done");
  Running running(folder.path(), [&] { return supervise(plan); });
  ASSERT_TRUE(eventually([&] { return pids_of(folder.path(), 2).size() == 2; }));
  kill(running.pid(), SIGINT);
  ASSERT_TRUE(eventually([&] { return count_lines(running.output(), "told") == 2; }));
  kill(running.pid(), SIGINT);
  EXPECT_EQ(running.wait(), 128 + SIGINT);
  EXPECT_THAT(running.error(), Not(HasSubstr("killed by signal"))) << "as if somebody else had";
  for (const pid_t pid : pids_of(folder.path(), 2)) {
    EXPECT_FALSE(is_alive(pid));
  }
}

// As slurmstepd and srun do at a job's time limit.
TEST(Supervisor, ASecondSigtermOfOneRequestKillsNobody) {
  TemporaryFolder folder;
  const LaunchPlan plan =
      shell_plan(folder.path(), 2,
                 std::string("trap 'echo told; until [ -e $F/go ]; do sleep 0.02; done; echo saved; exit 75' TERM; ") +
                     kWritePid + "while :; do sleep 0.05; done");
  Running running(folder.path(), [&] { return supervise(plan); });
  ASSERT_TRUE(eventually([&] { return pids_of(folder.path(), 2).size() == 2; }));
  kill(running.pid(), SIGTERM);
  ASSERT_TRUE(eventually([&] { return count_lines(running.output(), "told") == 2; }));
  kill(running.pid(), SIGTERM);
  std::ofstream(folder.path() / "go") << "on";
  EXPECT_EQ(running.wait(), 75) << running.error();
  EXPECT_EQ(count_lines(running.output(), "saved"), 2);
}

TEST(Supervisor, LeavesNoProcessOfARankBehind) {
  TemporaryFolder folder;
  // Every rank starts a process that outlives it and holds its output open.
  const std::string script = "sleep 300 & echo $$ $! > $F/p$ORTHANT_RANK; mv $F/p$ORTHANT_RANK $F/pid_$ORTHANT_RANK; ";
  const Result result = run_to_end(folder.path(), shell_plan(folder.path(), 2, script + "exit 0"));
  EXPECT_EQ(result.code, 0);
  const std::vector<pid_t> pids = pids_of(folder.path(), 2);
  ASSERT_EQ(pids.size(), 4u);
  for (const pid_t pid : pids) {
    EXPECT_TRUE(eventually([&] { return !is_alive(pid); })) << pid;
  }
}

TEST(Supervisor, NoRankOutlivesAKilledLauncher) {
  TemporaryFolder folder;
  const LaunchPlan plan = shell_plan(folder.path(), 3, std::string(kWritePid) + "exec sleep 300");
  Running running(folder.path(), [&] { return supervise(plan); });
  ASSERT_TRUE(eventually([&] { return pids_of(folder.path(), 3).size() == 3; }));
  for (const pid_t pid : pids_of(folder.path(), 3)) {
    EXPECT_TRUE(is_alive(pid));
  }
  kill(running.pid(), SIGKILL);
  EXPECT_EQ(running.wait(), -SIGKILL);
  for (const pid_t pid : pids_of(folder.path(), 3)) {
    EXPECT_TRUE(eventually([&] { return !is_alive(pid); })) << pid;
  }
}

TEST(Supervisor, AProgramThatIsNotThereIsSaidSo) {
  TemporaryFolder folder;
  LaunchPlan plan = shell_plan(folder.path(), 1, "");
  plan.command = {"/no/such/program"};
  const Result result = run_to_end(folder.path(), plan);
  EXPECT_EQ(result.code, 127);
  EXPECT_THAT(result.error, HasSubstr("cannot run /no/such/program: No such file or directory"));
  // Without a slash it is looked for in PATH, and nowhere else.
  TemporaryFolder other;
  plan = shell_plan(other.path(), 1, "");
  plan.command = {"no-such-program-of-orthant"};
  EXPECT_THAT(run_to_end(other.path(), plan).error,
              HasSubstr("cannot run no-such-program-of-orthant: No such file or directory"));
  plan.command = {other.path().string()};
  EXPECT_THAT(run_to_end(other.path(), plan).error, HasSubstr(": Permission denied"));
}

TEST(Supervisor, ARunFolderThatCannotBeMadeIsRefused) {
  TemporaryFolder folder;
  LaunchPlan plan = shell_plan(folder.path(), 1, "echo hello");
  plan.run_directory = "/proc/no/such/run";
  EXPECT_THROW(supervise(plan), Error);
}

// The reason is the failed call's, not that of an earlier one.
TEST(Supervisor, TooFewFileDescriptorsAreSaidSo) {
  TemporaryFolder folder;
  Running running(folder.path(), [&] {
    const rlimit few{12, 12};
    setrlimit(RLIMIT_NOFILE, &few);
    return supervise(shell_plan(folder.path(), 8, "sleep 60"));
  });
  EXPECT_EQ(running.wait(), 99);
  EXPECT_THAT(running.error(), HasSubstr("cannot make a pipe for a rank: Too many open files (see ulimit -n)"));
}

// Nobody reads what the launcher prints: neither the ranks wait for that nor the launcher, which hears signals.
TEST(Supervisor, AnOutputThatNobodyReadsHoldsUpNothing) {
  TemporaryFolder folder;
  LaunchPlan plan = shell_plan(folder.path(), 1,
                               std::string("trap 'echo told; exit 75' TERM; seq 100000 | sed 's/^/a line that is long "
                                           "enough to fill a pipe and more /'; ") +
                                   kWritePid + "while :; do echo more; sleep 0.01; done");
  plan.last_words_seconds = 0.1;
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  plan.output = plan.error = ends[1];
  Running running(folder.path(), [&] { return supervise(plan); });
  ASSERT_TRUE(eventually([&] { return pids_of(folder.path(), 1).size() == 1; })) << "the rank is held up";
  kill(running.pid(), SIGTERM);
  EXPECT_EQ(running.wait(), 75);
  EXPECT_THAT(read_file(folder.path() / "run/logs/rank_0.log"), HasSubstr("more 100000\n"));
  close(ends[0]);
  close(ends[1]);
}

// SigBlk of /proc/self/status, in which bit N - 1 is signal N: HUP 1, INT 2, USR1 10, TERM 15. The first two may be
// ignored here, as under nohup and in the background of a script, and stay so.
TEST(Supervisor, RequestsToStopAreBlockedInRanksThatAskForThem) {
  for (const bool ask : {false, true}) {
    TemporaryFolder folder;
    LaunchPlan plan = shell_plan(folder.path(), 1, "exec grep SigBlk /proc/self/status");
    plan.ranks_ask_for_signals = ask;
    EXPECT_THAT(run_to_end(folder.path(), plan).output,
                ContainsRegex(ask ? "000000000000420[0-3]" : "0000000000000000"));
  }
}

TEST(Supervisor, AWarningIsNoImpatience) {
  TemporaryFolder folder;
  const LaunchPlan plan = shell_plan(folder.path(), 1,
                                     std::string("trap 'echo told; while [ ! -e $F/go ]; do sleep 0.01; done; exit 75' "
                                                 "TERM; ") +
                                         kWritePid + "while :; do sleep 0.01; done");
  Running running(folder.path(), [&] { return supervise(plan); });
  ASSERT_TRUE(eventually([&] { return pids_of(folder.path(), 1).size() == 1; }));
  kill(running.pid(), SIGUSR1);
  ASSERT_TRUE(eventually([&] { return count_lines(running.output(), "told") == 1; }));
  EXPECT_THAT(running.error(), Not(HasSubstr("once more")));
  kill(running.pid(), SIGTERM);  // the time limit that the warning was of
  ASSERT_TRUE(eventually([&] { return count_lines(running.error(), "(once more to kill them)") == 1; }));
  std::ofstream(folder.path() / "go") << "\n";
  EXPECT_EQ(running.wait(), 75) << running.error();
}

TEST(Supervisor, ASignalWhileNoRankRunsIsHeard) {
  for (const std::int64_t checkpoint : {-1, 40}) {
    TemporaryFolder folder;
    LaunchPlan plan = shell_plan(folder.path(), 1, "exit 9");
    plan.max_restarts = 5;
    plan.restart_command = plan.command;
    plan.first_wait_seconds = 600;
    plan.longest_wait_seconds = 600;
    plan.newest_checkpoint = [checkpoint] { return checkpoint; };
    Running running(folder.path(), [&] { return supervise(plan); });
    ASSERT_TRUE(eventually([&] { return count_lines(running.error(), "restart 1 of 5, in 600 s") == 1; }));
    kill(running.pid(), SIGTERM);
    EXPECT_EQ(running.wait(), checkpoint < 0 ? 128 + SIGTERM : 75) << running.error();
  }
}

TEST(Supervisor, AKillFromOutsideAndABusErrorGetAHint) {
  TemporaryFolder folder;
  EXPECT_THAT(run_to_end(folder.path(), shell_plan(folder.path(), 1, "kill -KILL $$")).error,
              testing::AnyOf(HasSubstr("launch: the launcher did not kill it. Was it out of memory"),
                             HasSubstr("launch: out of memory: the kernel killed")));
  EXPECT_THAT(run_to_end(folder.path(), shell_plan(folder.path(), 1, "kill -BUS $$")).error,
              HasSubstr("launch: memory that it had mapped failed"));
}

// ulimit -t: by SIGXCPU at the soft limit, by SIGKILL at the hard one.
TEST(Supervisor, ALimitOfProcessorTimeIsNamed) {
  for (const rlim_t hard : {rlim_t{1}, rlim_t{1000}}) {
    TemporaryFolder folder;
    Running running(folder.path(), [&] {
      const rlimit limit{1, hard};
      require(setrlimit(RLIMIT_CPU, &limit) == 0, "no limit");
      return supervise(shell_plan(folder.path(), 1, "while :; do :; done"));
    });
    EXPECT_EQ(running.wait(), 128 + (hard == 1 ? SIGKILL : SIGXCPU));
    EXPECT_THAT(running.error(), HasSubstr("of processor time, and its limit is 1 s (ulimit -t)"));
  }
}

TEST(LaunchPlanText, NamesRanksEnvironmentCommandAndLogs) {
  LaunchPlan plan;
  plan.command = {"orthant", "train", "my config.toml"};
  plan.run_directory = "runs/x";
  plan.world_size = plan.local_ranks = 2;
  const std::string text = describe(plan);
  EXPECT_THAT(text, HasSubstr("[r1] ORTHANT_RANK=1 ORTHANT_WORLD_SIZE=2 ORTHANT_LOCAL_RANK=1 ORTHANT_RUN_DIR=runs/x "
                              "orthant train 'my config.toml'"));
  EXPECT_THAT(text, HasSubstr("runs/x/logs/rank_0.log"));
}

TEST(ShellQuoted, SurvivesAShell) {
  EXPECT_EQ(shell_quoted("a.b=1"), "a.b=1");
  EXPECT_EQ(shell_quoted("it's $HOME"), "'it'\\''s $HOME'");
  EXPECT_EQ(shell_quoted(""), "''");
}

}  // namespace
}  // namespace orthant::launch_test::supervisor_test
