// The launch command of the built program, from a shell.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/wait.h>

#include <cstdlib>
#include <fstream>

#include "tests/support/paths.h"
#include "tests/support/run_supervisor.h"

namespace orthant::launch_test::launch_command_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class LaunchCommand : public ::testing::Test {
 protected:
  // A dense model on the synthetic source: its layout needs one rank.
  LaunchCommand() {
    std::ofstream(folder_.path() / "config.toml")
        << "[run]\nname = \"x\"\ndirectory = \"" << (folder_.path() / "runs").string()
        << "\"\n[data]\nsource = \"synthetic\"\n";
  }

  // Runs `orthant launch config.toml ARGUMENTS` with nothing but `environment` set.
  int run(const std::string& arguments, const std::string& environment = "") {
    const std::string folder = folder_.path().string();
    const int status = std::system(("cd " + folder + " && env -i PATH=\"$PATH\" " + environment + " " +
                                    paths::program() + " launch config.toml " + arguments + " > out 2> err < /dev/null")
                                       .c_str());
    output_ = read_file(folder_.path() / "out");
    error_ = read_file(folder_.path() / "err");
    return WEXITSTATUS(status);
  }

  TemporaryFolder folder_;
  std::string output_;
  std::string error_;
};

constexpr const char* kOpenMpi = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1";

TEST_F(LaunchCommand, DryRunPrintsWhatWouldRunAndStartsNothing) {
  EXPECT_EQ(run("--set run.steps=3 --resume auto --dry-run"), 0) << error_;
  EXPECT_THAT(output_, HasSubstr("[r0] ORTHANT_RANK=0 ORTHANT_WORLD_SIZE=1 ORTHANT_LOCAL_RANK=0"));
  EXPECT_THAT(output_, HasSubstr("orthant train config.toml --set run.steps=3 --resume auto"));
  EXPECT_THAT(output_, HasSubstr("/runs/x/logs/rank_0.log"));
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "runs"));
}

TEST_F(LaunchCommand, AnotherNumberOfRanksThanTheLayoutNeedsIsRefused) {
  EXPECT_EQ(run("--nproc 3 --dry-run"), 78);
  EXPECT_THAT(error_, HasSubstr("needs 1 rank, found 3 (--nproc)"));
  EXPECT_EQ(run("--nproc 1 --dry-run"), 0) << error_;
  EXPECT_EQ(run("--nproc auto --dry-run"), 0) << error_;
  EXPECT_EQ(run("--nproc 0 --dry-run"), 78);
  EXPECT_EQ(run("--nproc many --dry-run"), 78);
  EXPECT_THAT(error_, HasSubstr("expected 'auto' or a number"));
}

TEST_F(LaunchCommand, AWorldOfAnExternalLauncherIsSaidAndMustFit) {
  EXPECT_EQ(run("--dry-run", kOpenMpi), 78);
  EXPECT_THAT(error_, HasSubstr("needs 1 rank, found 2 (Open MPI)"));
  EXPECT_EQ(run("--dry-run", "SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_LOCALID=0"), 0) << error_;
  EXPECT_THAT(error_, HasSubstr("rank 0 of 1, started by Slurm"));
}

// It serves only GPUs, and the model of these tests is on the CPU.
TEST_F(LaunchCommand, NcclOnTheCpuIsRefusedBeforeAnyRankStarts) {
  EXPECT_EQ(run("--set run.communicator=nccl --dry-run"), 78);
  EXPECT_THAT(error_, HasSubstr("communicator \"nccl\" moves the memory of device \"cuda\" only"));
  EXPECT_THAT(error_, HasSubstr("communicator = \"local\""));
}

TEST_F(LaunchCommand, ContradictionsAreRefused) {
  const std::string torchrun = "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=here MASTER_PORT=1 ";
  EXPECT_EQ(run("--dry-run", torchrun + kOpenMpi), 78);
  EXPECT_THAT(error_, HasSubstr("torchrun says rank 0 of 1"));
  EXPECT_EQ(run("--nproc 2 --dry-run", torchrun), 78);
  EXPECT_THAT(error_, HasSubstr("--nproc 2 contradicts torchrun, which started 1"));
  EXPECT_EQ(run("--max-restarts 1 --dry-run", torchrun), 78);
  EXPECT_THAT(error_, HasSubstr("--max-restarts cannot be used under torchrun"));
}

TEST_F(LaunchCommand, AHostfileNeedsACommunicatorThatReachesHosts) {
  std::ofstream(folder_.path() / "hosts") << "a slots=1\n";
  EXPECT_EQ(run("--hostfile hosts --dry-run"), 78);
  EXPECT_THAT(error_, HasSubstr("run.communicator is 'local' (from default)"));

  // Not every machine that runs the tests has Open MPI.
  std::filesystem::create_directory(folder_.path() / "bin");
  std::filesystem::create_symlink("/bin/true", folder_.path() / "bin/mpirun");
  const std::string path = "PATH=" + (folder_.path() / "bin").string();
  EXPECT_EQ(run("--hostfile hosts --dry-run --set 'run.communicator=\"mpi\"'", path), 0) << error_;
  EXPECT_THAT(output_, HasSubstr("mpirun -np 1 --hostfile hosts"));
  EXPECT_THAT(output_, HasSubstr("orthant train config.toml --set 'run.communicator=\"mpi\"'"));
  const std::string nccl = "--set run.device=cuda --set run.communicator=nccl";
  EXPECT_EQ(run("--hostfile hosts --dry-run " + nccl, path), 0) << error_;
  EXPECT_THAT(output_, HasSubstr(" -x ORTHANT_SECRET -x "));  // by name: its value is not for those who list processes
  EXPECT_EQ(run("--dry-run --set 'run.communicator=\"mpi\"'", path), 0) << error_;
  EXPECT_THAT(output_, HasSubstr("mpirun -np 1 --oversubscribe"));
  EXPECT_EQ(run("--hostfile hosts --dry-run --set 'run.communicator=\"mpi\"'", "PATH=/nowhere"), 78);
  EXPECT_THAT(error_, HasSubstr("mpirun, which is not in PATH"));
}

TEST_F(LaunchCommand, ABadConfigurationEndsWith78BeforeAnyRank) {
  EXPECT_EQ(run("--set run.stepz=3"), 78);
  EXPECT_THAT(error_, HasSubstr("stepz"));
  EXPECT_THAT(error_, Not(HasSubstr("rank 0")));
}

}  // namespace
}  // namespace orthant::launch_test::launch_command_test
