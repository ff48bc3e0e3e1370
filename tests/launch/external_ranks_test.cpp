// Ranks of `local` that another launcher starts, one process each: torchrun's environment, made by a shell.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/wait.h>

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>

#include "tests/support/paths.h"
#include "tests/support/run_supervisor.h"

namespace orthant::launch_test::external_ranks_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ExternalRanks : public ::testing::Test {
 protected:
  // Two ranks of a small dense model.
  ExternalRanks() {
    std::ofstream(folder_.path() / "config.toml")
        << "[run]\nname = \"x\"\nsteps = 3\n[data]\nsource = \"synthetic\"\n"
           "[model]\nd_model = 32\nlayers = 1\nheads = 2\n[plugins.data]\nsize = 2\n";
  }

  // Runs a script that can call `rank R ARGUMENTS` for rank R of `torchrun --nproc-per-node 2`, output in outR.
  int run(const std::string& script, const std::string& on_this_machine = "2") {
    std::ofstream(folder_.path() / "script")
        << "rank() { RANK=$1 LOCAL_RANK=$1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=" << on_this_machine
        << " MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 exec " << paths::program()
        << " launch config.toml $2 > out$1 2>&1; }\n"
        << script << "\n";
    const int status = std::system(
        fmt::format("cd {} && env -i PATH=\"$PATH\" OMP_NUM_THREADS=1 sh script < /dev/null", folder_.path().string())
            .c_str());
    return WEXITSTATUS(status);
  }
  std::string said(int rank) { return read_file(folder_.path() / fmt::format("out{}", rank)); }

  TemporaryFolder folder_;
};

TEST_F(ExternalRanks, OfOneMachineShareMemory) {
  ASSERT_EQ(run("rank 1 & one=$!; rank 0 & wait $! && wait $one"), 0) << said(0) << said(1);
  EXPECT_THAT(said(0), AllOf(HasSubstr("rank 0 of 2, started by torchrun"), HasSubstr("done: 3 steps")));
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path() / "runs")) {
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr("secret")));  // gone when all had met
  }
}

TEST_F(ExternalRanks, OneWhoseLauncherIsKilledIsNamedByTheOther) {
  for (const int dead : {1, 0}) {
    const std::string more = "'--set run.steps=1000000 --set run.log_every=1'";
    const int code =
        run(fmt::format("rm -rf runs; rank 0 {0} & zero=$!; rank 1 {0} & one=$!\n"
                        "until [ -s runs/x/metrics.jsonl ] || ! kill -0 $zero; do sleep 0.05; done\n"
                        "kill -9 ${1}; wait ${2}",
                        more, dead == 1 ? "one" : "zero", dead == 1 ? "zero" : "one"));
    EXPECT_EQ(code, 1);
    EXPECT_THAT(said(1 - dead), HasSubstr(fmt::format("rank {} is gone: the process that started it ended", dead)));
  }
}

TEST_F(ExternalRanks, OfSeveralMachinesGetAdviceThatWorks) {
  EXPECT_EQ(run("rank 0", "1"), 78);
  EXPECT_THAT(said(0), HasSubstr("start them by mpirun, srun or `./launch --hostfile`, with communicator = \"mpi\""));
}

// Each of the ranks would find itself alone in a world of one.
TEST_F(ExternalRanks, OfTorchrunAreUnknownToMpi) {
  EXPECT_EQ(run("rank 0 '--set run.communicator=mpi'"), 78);
  EXPECT_THAT(said(0), HasSubstr("of which MPI knows nothing. These are on one machine: use communicator = \"local\""));
  EXPECT_EQ(run("rank 0 '--set run.communicator=mpi'", "1"), 78);
  EXPECT_THAT(said(0), HasSubstr("Start them by mpirun, srun or `./launch --hostfile` instead"));
}

TEST_F(ExternalRanks, TheirSecretIsNotShown) {
  const std::string secret = "0123456789abcdef0123456789abcdef";
  const std::string gpus = " --dry-run --set run.device=cuda --set run.communicator=nccl";
  ASSERT_EQ(run("ORTHANT_SECRET=" + secret + "; export ORTHANT_SECRET; rank 0 '" + gpus + "'"), 0) << said(0);
  EXPECT_THAT(said(0), AllOf(HasSubstr("ORTHANT_SECRET=(secret)"), Not(HasSubstr(secret))));
  EXPECT_EQ(run("ORTHANT_SECRET=hunter2; export ORTHANT_SECRET; rank 0 '" + gpus + "'"), 78);
  EXPECT_THAT(said(0), AllOf(HasSubstr("at least 32 are needed"), Not(HasSubstr("hunter2"))));
}

}  // namespace
}  // namespace orthant::launch_test::external_ranks_test
