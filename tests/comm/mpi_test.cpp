// The mpi communicator under mpirun.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::test::mpi_test {
namespace {

const std::string program = paths::build("bin/comm_conformance_mpi");

// Output of both streams, and the exit status.
std::pair<std::string, int> mpirun(int ranks, const std::string& mode, const std::string& options = "") {
  // MPI itself leaks a little at exit, which is not ours to report.
  const std::string command = "ASAN_OPTIONS=detect_leaks=0 ORTHANT_PLUGIN_PATH=" + paths::plugin() +
                              " timeout 120 mpirun --oversubscribe --allow-run-as-root -n " + std::to_string(ranks) +
                              " " + options + " " + program + " " + mode + " 2>&1";
  std::FILE* pipe = popen(command.c_str(), "r");
  std::string output;
  char line[512];
  while (pipe != nullptr && std::fgets(line, sizeof(line), pipe) != nullptr) {
    output += line;
  }
  return {output, pipe != nullptr ? pclose(pipe) : -1};
}

TEST(Mpi, Conforms) {
  if (const std::string reason = run_test::why_no_mpirun(); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  const auto [output, status] = mpirun(4, "");
  EXPECT_EQ(status, 0) << output;
  EXPECT_THAT(output, testing::HasSubstr("conformance passed on 4 ranks"));
}

TEST(Mpi, TheTimeCountsFromTheLastSignOfARankThatIsBusy) {
  if (const std::string reason = run_test::why_no_mpirun(); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  const auto [output, status] = mpirun(3, "busy");
  EXPECT_EQ(status, 0) << output;
  EXPECT_THAT(output, testing::HasSubstr("busy passed"));
}

TEST(Mpi, TheRankThatHoldsUpAChainIsNamed) {
  if (const std::string reason = run_test::why_no_mpirun(); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  const auto [output, status] = mpirun(3, "chain");
  EXPECT_NE(status, 0);
  EXPECT_THAT(output, testing::HasSubstr("rank 1 did not arrive at barrier #1 (0 bytes) of group 'high' within 1 s: "
                                         "held up by rank 0"));
}

TEST(Mpi, NeighboursSendToEachOtherAtOnce) {
  if (const std::string reason = run_test::why_no_mpirun(); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  for (const int ranks : {2, 3, 8}) {
    const auto [output, status] = mpirun(ranks, "neighbours");
    EXPECT_EQ(status, 0) << output;
    EXPECT_THAT(output, testing::HasSubstr(fmt::format("neighbours passed on {} ranks", ranks)));
  }
}

TEST(Mpi, NeighboursSendToEachOtherOverTcp) {
  if (const std::string reason = run_test::why_no_mpirun(); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  const auto [output, status] = mpirun(4, "neighbours", "--mca btl self,tcp --mca btl_tcp_if_include lo");
  EXPECT_EQ(status, 0) << output;
  EXPECT_THAT(output, testing::HasSubstr("neighbours passed on 4 ranks"));
}

TEST(Mpi, ManyGroupsOnSixteenRanks) {
  if (const std::string reason = run_test::why_no_mpirun(); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  const auto [output, status] = mpirun(16, "crowd");
  EXPECT_EQ(status, 0) << output;
  EXPECT_THAT(output, testing::HasSubstr("crowd passed on 16 ranks"));
}

TEST(Mpi, SplitsThatDifferOrDoNotHappenAreNamed) {
  if (const std::string reason = run_test::why_no_mpirun(); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  const auto [differ, differ_status] = mpirun(3, "splits");
  EXPECT_NE(differ_status, 0);
  EXPECT_THAT(differ, testing::HasSubstr("split must be called in the same order on every rank"));
  const auto [missing, missing_status] = mpirun(3, "missing");
  EXPECT_NE(missing_status, 0);
  EXPECT_THAT(missing, testing::HasSubstr("failed: rank 1 did not arrive at split of group 'a'"));
}

TEST(Mpi, WaitingLeavesTheProcessorToOthers) {
  if (const std::string reason = run_test::why_no_mpirun(); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  const auto [output, status] = mpirun(2, "idle");
  ASSERT_EQ(status, 0) << output;
  const auto found = output.find("rank 0 waited with ");
  ASSERT_NE(found, std::string::npos) << output;
  EXPECT_LT(std::stod(output.substr(found + std::strlen("rank 0 waited with "))), 0.5) << output;
}

TEST(Mpi, ALateRankIsNamedAfterTheTimeout) {
  if (const std::string reason = run_test::why_no_mpirun(); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  const auto [output, status] = mpirun(3, "late");
  EXPECT_NE(status, 0);
  EXPECT_THAT(output,
              testing::HasSubstr("failed: rank 1 did not arrive at barrier #2 (0 bytes) of group 'data' within 0.5 s"));
}

}  // namespace
}  // namespace orthant::test::mpi_test
