#include "parallel/launch/external_launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/error.h>

#include <map>

namespace orthant::external_launcher_test {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

std::optional<ExternalRank> find(const Variables& variables) {
  return find_external_rank([&](const std::string& name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    return it == variables.end() ? std::nullopt : std::optional(it->second);
  });
}

std::string refusal(const Variables& variables) {
  try {
    find(variables);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

Variables operator+(Variables a, const Variables& b) {
  a.insert(b.begin(), b.end());
  return a;
}

const Variables kTorchrun = {
    {"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}};
const Variables kOpenMpi = {
    {"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}};
const Variables kSlurm = {{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "1"}};

TEST(ExternalLauncher, IsFoundByItsVariables) {
  EXPECT_FALSE(find({}));
  for (const auto& [variables, name] :
       {std::pair(kTorchrun, "torchrun"), std::pair(kOpenMpi, "Open MPI"), std::pair(kSlurm, "Slurm")}) {
    const auto found = find(variables);
    ASSERT_TRUE(found) << name;
    EXPECT_EQ(found->launcher, name);
    EXPECT_EQ(found->rank, 3);
    EXPECT_EQ(found->world_size, 4);
    EXPECT_EQ(found->local_rank, 1);
  }
}

TEST(ExternalLauncher, TorchrunComesBeforeOpenMpiBeforeSlurm) {
  EXPECT_EQ(find(kTorchrun + kOpenMpi + kSlurm)->launcher, "torchrun");
  EXPECT_EQ(find(kOpenMpi + kSlurm)->launcher, "Open MPI");
  EXPECT_THAT(find(kOpenMpi + kSlurm)->describe(), HasSubstr("rank 3 of 4, started by Open MPI (OMPI_COMM_WORLD_RANK"));
}

TEST(ExternalLauncher, ContradictionsAreRefusedWithBothSides) {
  const Variables two = {
      {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}};
  EXPECT_THAT(refusal(kTorchrun + two), HasSubstr("torchrun says rank 3 of 4 (RANK=3, WORLD_SIZE=4) but Open MPI says "
                                                  "rank 1 of 2 (OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=2)"));
  const Variables slurm = {{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "1"}};
  EXPECT_THAT(refusal(kOpenMpi + slurm), HasSubstr("Open MPI says rank 3 of 4"));
  EXPECT_THAT(refusal(kTorchrun + slurm), HasSubstr("SLURM_NTASKS=8"));
}

TEST(ExternalLauncher, OneTorchrunPerNodeUnderSlurmIsNoContradiction) {
  const Variables nodes = {{"GROUP_RANK", "1"},   {"GROUP_WORLD_SIZE", "2"}, {"SLURM_PROCID", "1"},
                           {"SLURM_NTASKS", "2"}, {"SLURM_LOCALID", "0"},    {"SLURM_JOB_ID", "7"},
                           {"SLURM_STEP_ID", "0"}};
  EXPECT_EQ(find(kTorchrun + nodes)->world_size, 4);
}

TEST(ExternalLauncher, DaemonsOfMpirunUnderSlurmAreNoContradiction) {
  const Variables daemons = {{"SLURM_PROCID", "0"},
                             {"SLURM_NTASKS", "1"},
                             {"SLURM_LOCALID", "0"},
                             {"SLURM_JOB_ID", "7"},
                             {"SLURM_STEP_ID", "0"}};
  EXPECT_EQ(find(kOpenMpi + daemons)->launcher, "Open MPI");
}

TEST(ExternalLauncher, SaysWhetherAllRanksAreOnOneMachine) {
  EXPECT_FALSE(find(kTorchrun)->on_one_machine);
  EXPECT_TRUE(find(kTorchrun + Variables{{"LOCAL_WORLD_SIZE", "4"}})->on_one_machine);
  EXPECT_FALSE(find(kTorchrun + Variables{{"LOCAL_WORLD_SIZE", "2"}})->on_one_machine);
  Variables here = kTorchrun;
  here["MASTER_ADDR"] = "127.0.0.1";
  EXPECT_TRUE(find(here)->on_one_machine) << "no other machine meets at this address";
  EXPECT_FALSE(find(here + Variables{{"LOCAL_WORLD_SIZE", "2"}})->on_one_machine);
  EXPECT_TRUE(find(kOpenMpi + Variables{{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}})->on_one_machine);
  EXPECT_FALSE(find(kOpenMpi + Variables{{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}})->on_one_machine);
  EXPECT_FALSE(find(kSlurm)->on_one_machine);
  EXPECT_TRUE(find(kSlurm + Variables{{"SLURM_NNODES", "1"}})->on_one_machine);
  EXPECT_FALSE(find(kSlurm + Variables{{"SLURM_NNODES", "1"}, {"SLURM_STEP_NUM_NODES", "2"}})->on_one_machine);
}

TEST(ExternalLauncher, SaysHowManyRanksShareThisMachine) {
  EXPECT_EQ(find(kTorchrun)->local_size, 0);
  EXPECT_EQ(find(kTorchrun + Variables{{"LOCAL_WORLD_SIZE", "2"}})->local_size, 2);
  EXPECT_EQ(find(kOpenMpi)->local_size, 0);
  EXPECT_EQ(find(kOpenMpi + Variables{{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}})->local_size, 3);
  EXPECT_EQ(find(kSlurm + Variables{{"SLURM_NNODES", "2"}})->local_size, 0);
  EXPECT_EQ(find(kSlurm + Variables{{"SLURM_NNODES", "1"}})->local_size, 4);
  EXPECT_THAT(refusal(kTorchrun + Variables{{"LOCAL_WORLD_SIZE", "two"}}), HasSubstr("LOCAL_WORLD_SIZE is 'two'"));
}

TEST(ExternalLauncher, SaysWhetherMpiKnowsTheRanks) {
  EXPECT_FALSE(find(kTorchrun)->known_to_mpi);
  EXPECT_TRUE(find(kTorchrun + kOpenMpi)->known_to_mpi);  // mpirun, and a script that exports torchrun's variables
  EXPECT_TRUE(find(kOpenMpi)->known_to_mpi);
  EXPECT_TRUE(find(kSlurm)->known_to_mpi);
}

TEST(ExternalLauncher, ABatchScriptIsNoRank) {
  const Variables script = {
      {"SLURM_JOB_ID", "7"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "0"}};
  EXPECT_FALSE(find(script));
  EXPECT_TRUE(find(script + Variables{{"SLURM_STEP_ID", "0"}}));
  EXPECT_FALSE(find({{"SLURM_NTASKS", "4"}}));
}

TEST(ExternalLauncher, HalfASetOfVariablesIsRefusedByName) {
  EXPECT_THAT(refusal({{"RANK", "0"}, {"LOCAL_RANK", "0"}}), HasSubstr("not WORLD_SIZE"));
  EXPECT_THAT(refusal({{"RANK", "0"}, {"LOCAL_RANK", "0"}, {"WORLD_SIZE", "1"}}), HasSubstr("MASTER_ADDR"));
  EXPECT_THAT(refusal({{"OMPI_COMM_WORLD_RANK", "0"}}), HasSubstr("not OMPI_COMM_WORLD_SIZE"));
}

TEST(ExternalLauncher, ValuesThatMakeNoSenseAreRefused) {
  for (const char* bad : {"four", "-1", "4x", "99999999999"}) {
    Variables variables = kSlurm;
    variables["SLURM_NTASKS"] = bad;
    EXPECT_THAT(refusal(variables), HasSubstr(std::string("SLURM_NTASKS is '") + bad + "'"));
  }
  Variables beyond = kOpenMpi;
  beyond["OMPI_COMM_WORLD_RANK"] = "4";
  EXPECT_THAT(refusal(beyond), HasSubstr("OMPI_COMM_WORLD_RANK < OMPI_COMM_WORLD_SIZE"));
}

}  // namespace
}  // namespace orthant::external_launcher_test
