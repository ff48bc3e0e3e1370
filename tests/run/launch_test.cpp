// What is refused before any rank starts; and the mpi communicator under mpirun.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test::launch_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

class Launch : public testing::Test {
 protected:
  Launch() { folder_.write("c.toml", tiny_config({2, 2})); }
  ProgramFolder folder_;
};

// All that read a configuration.
const std::vector<std::string> commands[] = {{"launch", "c.toml"},       {"launch", "--dry-run", "c.toml"},
                                             {"train", "c.toml"},        {"config", "c.toml"},
                                             {"plan", "c.toml"},         {"verify", "c.toml"},
                                             {"bench", "step", "c.toml"}};

TEST_F(Launch, WhatDoesNotFitIsRefusedAtItsPlaceBeforeAnyRank) {
  struct Case {
    std::vector<std::string> values;
    std::vector<std::string> expected;
  };
  const Case cases[] = {
      {{"moe.experts=3"}, {"c.toml:29:8: 3 units of dim 'expert'", "moe.experts (from --set:1:13)"}},
      {{"plugins.expert.size=3"}, {"--set:1:21: axis 'expert' of size 3 is carved from 2 ranks"}},
      {{"batch.sequences=3"}, {"c.toml:27:8: 3 units of dim 'batch'", "batch.sequences (from --set:1:17)"}},
      {{"batch.micro_batch=4"}, {"--set:1:19: batch.sequences = 4 leaves 2 sequences for each rank"}},
      {{"moe.group_tokens=64"}, {"--set:1:18: moe.group_tokens = 64 does not divide the 32 tokens of a micro-batch"}},
      // All at once.
      {{"moe.experts=3", "batch.sequences=3"}, {"2 errors", "3 units of dim 'expert'", "3 units of dim 'batch'"}},
      {{"plugins.data.size=4294967297"}, {"--set:1:19:", "above the maximum 65536"}},  // 1 as an int
      {{"run.stepz=3"}, {"unknown key 'stepz' in [run]"}},
      {{"data.path=[\"missing.txt\"]"}, {"missing.txt"}},
      // What only opening it tells.
      {{"run.communicator=\"carrier_pigeon\""}, {"--set:1:18:", "liborthant_communicator_carrier_pigeon"}},
      {{"run.communicator=\"locale\""}, {"there is no communicator \"locale\"", "did you mean \"local\"?"}},
      {{"run.device=\"cudda\""}, {"--set:1:12: [run] device: there is no device \"cudda\"", "did you mean \"cuda\"?"}},
      {{"run.communicator=\"nccl\""},
       {"--set:1:18:", "communicator \"nccl\" moves the memory of device \"cuda\" only", "write device = \"cuda\""}},
      {{"run.graphs=true"}, {"--set:1:12:", "the work of one rank by itself, but the configuration has plugins"}},
      {{"data.validation_fraction=0.0001"}, {"validation_fraction"}},
  };
  for (const Case& c : cases) {
    for (const std::vector<std::string>& command : commands) {
      const Result result = folder_.orthant(with_set(command, c.values));
      EXPECT_EQ(result.code, 78) << c.values[0] << " " << command[0];
      for (const std::string& text : c.expected) {
        EXPECT_THAT(result.error, HasSubstr(text)) << command[0];
      }
      EXPECT_THAT(result.error, Not(HasSubstr("[r0]")));
      EXPECT_FALSE(fs::exists(folder_.path("runs")));
    }
  }
}

TEST_F(Launch, MoreRanksThanSharedMemoryServesCanBePlannedButNotStarted) {
  for (const std::vector<std::string>& command : commands) {
    const bool plans = command[0] == "plan" || command[0] == "config" || command[1] == "--dry-run";
    const Result result = folder_.orthant(with_set(command, {"plugins.data.size=66", "batch.sequences=66"}));
    EXPECT_EQ(result.code, plans ? 0 : 78) << command[0] << result.error;
    EXPECT_THAT(result.error, HasSubstr(plans ? "note: run.communicator = \"local\" serves at most 64 ranks"
                                              : "--set:1:19: the layout has 66 ranks; the local communicator serves "
                                                "at most 64"));
  }
}

// A job for other machines is planned on one without their device and communicator: here libraries that are no
// libraries. What starts ranks here is refused, by every command with the same code.
TEST_F(Launch, WhatOnlyTheRanksMachinesHaveIsNotedByCommandsThatStartNone) {
  folder_.write("lib/liborthant_device_far.so", "far away");
  folder_.write("lib/liborthant_communicator_beyond.so", "farther");
  folder_.write("hosts", "a slots=2\n");
  folder_.write("bin/mpirun", "#!/bin/sh\nexit 0\n");
  fs::permissions(folder_.path("bin/mpirun"), fs::perms::owner_all);
  const std::vector<std::string> environment = {"ORTHANT_PLUGIN_PATH=" + folder_.path("lib").string(),
                                                "PATH=" + folder_.path("bin").string() + ":" + std::getenv("PATH")};
  const std::vector<std::string> far = {"run.device=\"far\"", "run.communicator=\"beyond\""};
  const std::vector<std::string> start_none[] = {{"config", "c.toml"},
                                                 {"plan", "c.toml"},
                                                 {"launch", "--dry-run", "c.toml"},
                                                 {"launch", "--dry-run", "--hostfile", "hosts", "c.toml"},
                                                 {"launch", "--hostfile", "hosts", "c.toml"}};
  for (const std::vector<std::string>& command : start_none) {
    const Result result = folder_.orthant(with_set(command, far), environment);
    EXPECT_EQ(result.code, 0) << command[0] << result.error;
    EXPECT_THAT(result.error, HasSubstr("note: run.device = \"far\" is not available on this machine"));
    EXPECT_THAT(result.error, HasSubstr("note: run.communicator = \"beyond\" is not available on this machine"));
  }
  for (const std::vector<std::string>& command : commands) {
    if (command[0] != "config" && command[0] != "plan" && command[1] != "--dry-run") {
      const Result result = folder_.orthant(with_set(command, {far[0]}), environment);
      EXPECT_EQ(result.code, 78) << command[0];
      EXPECT_THAT(result.error, HasSubstr("--set:1:12: cannot load device \"far\": ")) << command[0];
    }
  }
}

// Orthant's own device, whether it was built or not, without a GPU.
TEST_F(Launch, AJobForGpusIsPlannedWithoutOne) {
  const std::vector<std::string> no_gpu = {"CUDA_VISIBLE_DEVICES="};
  const std::vector<std::string> gpus = {"run.device=\"cuda\"", "run.communicator=\"nccl\""};
  for (const std::vector<std::string>& command : commands) {
    const Result result = folder_.orthant(with_set(command, gpus), no_gpu);
    const bool starts = command[0] != "config" && command[0] != "plan" && command[1] != "--dry-run";
    EXPECT_EQ(result.code, starts ? 78 : 0) << command[0] << result.error;
    EXPECT_THAT(result.error, HasSubstr(starts ? "device \"cuda\"" : "note: run.device = \"cuda\" is not available"));
  }
}

TEST_F(Launch, VerifySaysThatItUsesNoOtherCommunicator) {
  const Result result = folder_.orthant(
      with_set({"verify", "--steps", "1", "c.toml"}, {"run.communicator=\"mpi\"", "data.source=\"synthetic\""}));
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_THAT(result.error, HasSubstr("run.communicator = \"mpi\" is not used: here the ranks are threads"));
}

// An earlier run stays where it is when the new one is refused.
TEST_F(Launch, ARefusalMovesNothing) {
  ASSERT_EQ(folder_.orthant({"launch", "c.toml"}).code, 0);
  EXPECT_EQ(folder_.orthant({"launch", "c.toml", "--set", "moe.experts=3"}).code, 78);
  EXPECT_TRUE(fs::exists(folder_.checkpoint(8)));
  EXPECT_FALSE(fs::exists(folder_.run("r.1")));
}

TEST_F(Launch, RanksOfMpirunTrainAsLocalOnesDo) {
  if (const std::string why = why_no_mpirun(); !why.empty()) {
    GTEST_SKIP() << why;
  }
  const std::vector<std::string> leaks = {"ASAN_OPTIONS=detect_leaks=0"};  // MPI's own, at exit
  ASSERT_EQ(folder_.orthant(with_set({"launch", "c.toml"}, {"run.name=\"local\""})).code, 0);
  const std::vector<std::string> mpirun = {"mpirun", "--allow-run-as-root", "--oversubscribe", "-n",
                                           "2",      paths::program()};
  auto under_mpirun = [&](const std::string& command, const std::string& name) {
    std::vector<std::string> words = mpirun;
    words.insert(words.end(), {command, "c.toml"});
    return folder_.command(with_set(words, {"run.communicator=\"mpi\"", "run.name=\"" + name + "\""}), leaks);
  };
  for (const std::string command : {"train", "launch"}) {
    const Result result = under_mpirun(command, command);
    ASSERT_EQ(result.code, 0) << result.output << result.error;
    EXPECT_THAT(result.error, HasSubstr("rank 0 of 2, started by Open MPI"));
    EXPECT_EQ(folder_.losses(command), folder_.losses("local"));  // sums have one order in both
    EXPECT_THAT(differences(folder_.checkpoint(8, command), folder_.checkpoint(8, "local")), testing::IsEmpty());
    EXPECT_TRUE(fs::exists(folder_.run(command) / "logs/rank_1.log"));
  }
  // A second start of one name: rank 0 keeps the first, the logs go on.
  const Result again = under_mpirun("train", "train");
  ASSERT_EQ(again.code, 0) << again.output << again.error;
  EXPECT_TRUE(fs::exists(folder_.checkpoint(8, "train.1")));
  EXPECT_TRUE(fs::exists(folder_.checkpoint(8, "train")));
  EXPECT_EQ(folder_.losses("train"), folder_.losses("train.1"));

  const Result by_launch =
      folder_.orthant(with_set({"launch", "c.toml"}, {"run.communicator=\"mpi\"", "run.name=\"started\""}), leaks);
  ASSERT_EQ(by_launch.code, 0) << by_launch.output << by_launch.error;
  EXPECT_EQ(folder_.losses("started"), folder_.losses("local"));
}

}  // namespace
}  // namespace orthant::run_test::launch_test
