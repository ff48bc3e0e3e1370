// ./launch under mpirun or srun: the ranks of a machine build one after another, and only the first speaks of waiting.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test::build_lock_test {
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

// Whoever sources it goes on, and what it starts can write.
TEST(ScriptStreams, ThatAreClosedAreReplaced) {
  const ProgramFolder folder;
  folder.write("script", "set -euo pipefail; source '" + paths::source("scripts/common.sh") +
                             "'\ncat; say word; echo word | sed p >&2; echo word; : >\"$1\"\n");
  for (const std::string closed : {"<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"}) {
    const Result result = folder.command({"bash", "-c", "exec </dev/null; bash script 'done" + closed + "' " + closed});
    EXPECT_EQ(result.code, 0) << closed << result.error;
    EXPECT_TRUE(std::filesystem::exists(folder.path("done" + closed))) << closed;
  }
}

// A checkout of somebody else's: here root's, or one made read-only.
TEST(ForeignCheckout, ItsBuildIsUsedAndWithoutOneItIsSaidWhatToDo) {
  const ProgramFolder folder;
  namespace fs = std::filesystem;
  for (const char* name : {"scripts/common.sh", "launch"}) {
    fs::create_directories(folder.path(name).parent_path());
    fs::copy(paths::source(name), folder.path(name));
  }
  folder.write("build/.lock", "");
  const std::string as_other = geteuid() == 0 ? "setpriv --reuid 65534 --regid 65534 --clear-groups " : "";
  fs::permissions(folder.path(), fs::perms(0555));
  fs::permissions(folder.path("build"), fs::perms(0555));
  fs::permissions(folder.path("build/.lock"), fs::perms(0444));
  const std::string launch = as_other + "./launch c.toml --dry-run";

  const Result none = folder.command({"bash", "-c", launch});
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.error, testing::HasSubstr("cannot build there: let "));
  EXPECT_THAT(none.error, testing::HasSubstr("or use a checkout of your own"));

  fs::permissions(folder.path("build"), fs::perms(0755));
  folder.write("build/cpu/bin/orthant", "#!/bin/sh\necho \"$@\"\n");
  fs::permissions(folder.path("build/cpu/bin/orthant"), fs::perms(0755));
  fs::permissions(folder.path("build"), fs::perms(0555));
  const Result there = folder.command({"bash", "-c", launch});
  EXPECT_EQ(there.code, 0) << there.error;
  EXPECT_EQ(there.output, "launch c.toml --dry-run\n");
  fs::permissions(folder.path(), fs::perms(0755));
  fs::permissions(folder.path("build"), fs::perms(0755));
}

}  // namespace
}  // namespace orthant::run_test::build_lock_test
