// What is refused before any rank starts; and the mpi communicator under mpirun.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::run_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

class Launch : public testing::Test {
 protected:
  Launch() { folder_.write("c.toml", tiny_config({2, 2})); }
  ProgramFolder folder_;
};

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
      {{"plugins.data.size=66", "batch.sequences=66"},
       {"the layout has 66 ranks; the local communicator serves at most 64", "write \"mpi\""}},
      {{"run.device=\"abacus\""}, {"--set:1:12:", "abacus"}},
      {{"data.validation_fraction=0.0001"}, {"validation_fraction"}},
  };
  for (const Case& c : cases) {
    for (const char* command : {"launch", "train"}) {
      const Result result = folder_.orthant(with_set({command, "c.toml"}, c.values));
      EXPECT_EQ(result.code, 78) << c.values[0];
      for (const std::string& text : c.expected) {
        EXPECT_THAT(result.error, HasSubstr(text));
      }
      EXPECT_THAT(result.error, Not(HasSubstr("[r0]")));
      EXPECT_FALSE(fs::exists(folder_.path("runs")));
    }
  }
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
}  // namespace orthant::run_test
