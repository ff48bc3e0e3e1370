#include "parallel/launch/external_launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/error.h>

#include <fstream>
#include <map>
#include <regex>

#include "parallel/launch/meeting_point.h"
#include "tests/support/paths.h"

namespace orthant::external_launcher_test {
namespace {

using ::testing::AllOf;
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

TEST(ExternalLauncher, OtherLaunchersAreFoundByTheirVariables) {
  const Variables flux = {{"FLUX_TASK_RANK", "3"}, {"FLUX_JOB_SIZE", "4"}, {"FLUX_TASK_LOCAL_ID", "1"}},
                  jsrun = {{"JSM_NAMESPACE_RANK", "3"}, {"JSM_NAMESPACE_SIZE", "4"}, {"JSM_NAMESPACE_LOCAL_RANK", "1"}},
                  hydra = {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}},
                  pals = {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"PALS_LOCAL_RANKID", "1"}};
  for (const auto& [variables, name] :
       {std::pair(flux, "Flux"), std::pair(jsrun, "jsrun"), std::pair(hydra, "MPICH or Intel MPI"),
        std::pair(pals, "MPICH or Intel MPI")}) {
    const auto found = find(variables + Variables{{"PMIX_RANK", "3"}});
    ASSERT_TRUE(found) << name;
    EXPECT_EQ(found->launcher, name);
    EXPECT_EQ(found->rank, 3);
    EXPECT_EQ(found->world_size, 4);
    EXPECT_EQ(found->local_rank, 1);
    EXPECT_TRUE(found->known_to_mpi);
    EXPECT_FALSE(found->on_one_machine);
    EXPECT_THAT(found->describe(), HasSubstr(std::string("rank 3 of 4, started by ") + name + " ("));
  }
  EXPECT_EQ(find(hydra)->local_size, 2);
  EXPECT_TRUE(find(flux + Variables{{"FLUX_JOB_NNODES", "1"}})->on_one_machine);
  EXPECT_EQ(find({{"PMI_RANK", "0"}, {"PMI_SIZE", "4"}})->local_rank, 0);
  EXPECT_THAT(refusal({{"PMI_RANK", "0"}}), HasSubstr("not PMI_SIZE"));
  EXPECT_THAT(refusal({{"FLUX_TASK_RANK", "0"}, {"FLUX_TASK_LOCAL_ID", "0"}}), HasSubstr("not FLUX_JOB_SIZE"));
}

TEST(ExternalLauncher, OfSeveralThatAgreeTheOneThatKnowsMoreWins) {
  const Variables pmi = {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}},
                  flux = {{"FLUX_TASK_RANK", "3"}, {"FLUX_JOB_SIZE", "4"}, {"FLUX_TASK_LOCAL_ID", "1"}};
  EXPECT_EQ(find(kSlurm + pmi)->launcher, "Slurm");
  EXPECT_EQ(find(flux + pmi)->launcher, "Flux");
  EXPECT_EQ(find(kOpenMpi + pmi)->launcher, "Open MPI");
  EXPECT_EQ(find(kTorchrun + flux + pmi)->launcher, "torchrun");
}

TEST(ExternalLauncher, OtherLaunchersThatContradictAreRefused) {
  const Variables pmi = {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}},
                  flux = {{"FLUX_TASK_RANK", "3"}, {"FLUX_JOB_SIZE", "4"}, {"FLUX_TASK_LOCAL_ID", "1"}};
  EXPECT_THAT(refusal(pmi + kSlurm), HasSubstr("PMI_SIZE=2"));
  EXPECT_THAT(refusal(pmi + flux), AllOf(HasSubstr("Flux says rank 3 of 4"), HasSubstr("PMI_RANK=1")));
  EXPECT_THAT(refusal(pmi + kTorchrun), HasSubstr("torchrun says rank 3 of 4"));
  // mpiexec of MPICH inside a Slurm job: Slurm's numbers count its daemons.
  EXPECT_EQ(find(pmi + kSlurm + Variables{{"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "0"}})->world_size, 2);
}

TEST(ExternalLauncher, PodsAreRanks) {
  const Variables job = {{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "job-master-0"}, {"MASTER_PORT", "23456"}};
  const auto pod = find(job);
  ASSERT_TRUE(pod);
  EXPECT_EQ(pod->rank, 2);
  EXPECT_EQ(pod->world_size, 4);
  EXPECT_EQ(pod->local_rank, 0);
  EXPECT_FALSE(pod->on_one_machine);
  EXPECT_EQ(pod->describe(), "rank 2 of 4, started by PyTorchJob (RANK, WORLD_SIZE)");
  const auto indexed = find({{"JOB_COMPLETION_INDEX", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "run-0.run"}});
  ASSERT_TRUE(indexed);
  EXPECT_EQ(indexed->rank, 2);
  EXPECT_EQ(indexed->describe(), "rank 2 of 4, started by Kubernetes (JOB_COMPLETION_INDEX, WORLD_SIZE)");
  EXPECT_EQ(find(job + Variables{{"JOB_COMPLETION_INDEX", "2"}})->launcher, "PyTorchJob");
  EXPECT_THAT(refusal(job + Variables{{"JOB_COMPLETION_INDEX", "1"}}), HasSubstr("JOB_COMPLETION_INDEX=1"));
  EXPECT_THAT(refusal({{"JOB_COMPLETION_INDEX", "1"}}), HasSubstr("not WORLD_SIZE"));
  EXPECT_THAT(refusal(job + Variables{{"PET_NPROC_PER_NODE", "8"}}), HasSubstr("torchrun"));
  Variables alone = job;
  alone.erase("MASTER_PORT");
  EXPECT_THAT(refusal(alone), HasSubstr("not MASTER_PORT"));
  EXPECT_EQ(find(kTorchrun + Variables{{"JOB_COMPLETION_INDEX", "1"}})->launcher, "torchrun");
}

// What scripts/kubernetes/job.yaml gives each pod, and Kubernetes beside it.
TEST(ExternalLauncher, ThePodsOfTheRecipeAreRanks) {
  std::ifstream file(paths::source("scripts/kubernetes/job.yaml"));
  Variables variables = {{"JOB_COMPLETION_INDEX", "3"}};
  std::string completions;
  for (std::string line; std::getline(file, line);) {
    std::smatch found;
    if (std::regex_search(line, found, std::regex(R"re(\{name: (\w+), value: "?([^"}]+)"?\})re"))) {
      variables.emplace(found[1], found[2]);
    } else if (std::regex_search(line, found, std::regex("completions: ([0-9]+)"))) {
      completions = found[1];
    }
  }
  const auto rank = find(variables);
  ASSERT_TRUE(rank);
  EXPECT_EQ(rank->launcher, "Kubernetes");
  EXPECT_EQ(rank->rank, 3);
  EXPECT_EQ(std::to_string(rank->world_size), completions);
  EXPECT_EQ(rank->local_size, 1);
  EXPECT_EQ(meeting_point(
                [&](const std::string& name) -> std::optional<std::string> {
                  const auto it = variables.find(name);
                  return it == variables.end() ? std::nullopt : std::optional(it->second);
                },
                rank),
            "orthant-0.orthant:29500");
}

TEST(ExternalLauncher, ATaskThatIsToldNoRankIsNoJobOfItsOwn) {
  EXPECT_THAT(refusal({{"PMIX_RANK", "1"}}), HasSubstr("PMIX_RANK=1"));
  const Variables pbs = {{"PBS_NODEFILE", "/var/spool/nodes"}, {"PBS_JOBID", "7"}};
  EXPECT_FALSE(find(pbs + Variables{{"PBS_TASKNUM", "1"}})) << "the batch script";
  EXPECT_THAT(refusal(pbs + Variables{{"PBS_TASKNUM", "2"}}), HasSubstr("pbsdsh"));
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
