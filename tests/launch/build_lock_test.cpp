// ./launch under mpirun or srun: the ranks of a machine build one after another, and only the first speaks of waiting.
#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test {
namespace {

TEST(BuildLock, OnlyTheFirstRankOfAMachineSaysThatItWaits) {
  const ProgramFolder folder;
  for (const std::string variable : {"OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"}) {
    // The lock is held until rank 0 has said so; then both get it.
    const Result result = folder.command({"bash", "-c",
                                          "root=$PWD; mkdir -p build; exec 8>build/.lock; flock 8; : >err_0\n"
                                          "for rank in 0 1; do\n  (exec 8>&-; export " +
                                              variable + "=$rank; source '" + paths::source("scripts/common.sh") +
                                              "'; lock_build 2>err_$rank; echo built) &\ndone\n"
                                              "until grep -q waiting err_0; do sleep 0.05; done\n"
                                              "flock -u 8; wait; cat err_1 >&2"});
    EXPECT_EQ(result.code, 0);
    EXPECT_EQ(result.output, "built\nbuilt\n");
    EXPECT_EQ(result.error, "") << "rank 1 waits silently";
  }
}

}  // namespace
}  // namespace orthant::run_test
