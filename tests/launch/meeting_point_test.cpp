#include "parallel/launch/meeting_point.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include <orthant/error.h>

namespace orthant::launch_test::meeting_point_test {
namespace {

using Variables = std::map<std::string, std::string>;

// What every rank of a start finds; nothing where it is not known.
std::string found(const Variables& variables) {
  const EnvironmentLookup lookup = [&](const std::string& name) -> std::optional<std::string> {
    const auto at = variables.find(name);
    return at == variables.end() ? std::nullopt : std::optional<std::string>(at->second);
  };
  return meeting_point(lookup, find_external_rank(lookup)).value_or("");
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) {
    variables[name] = value;
  }
  return variables;
}

const Variables torchrun = {
    {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}};
const Variables slurm = {{"SLURM_PROCID", "5"},
                         {"SLURM_NTASKS", "8"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_JOB_ID", "77"},
                         {"SLURM_STEP_ID", "0"}};
const Variables openmpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                           {"OMPI_COMM_WORLD_SIZE", "4"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                           {"PMIX_NAMESPACE", "job9"}};

TEST(MeetingPoint, IsWhatTheUserSays) {
  for (const Variables& launcher : {Variables{}, torchrun, slurm, openmpi}) {
    EXPECT_EQ(found(with(launcher, {{"ORTHANT_RENDEZVOUS", "there:7"}})), "there:7");
  }
}

TEST(MeetingPoint, OfRanksOnHostsOfAFile) {
  EXPECT_THAT(meeting_point_on("first", [](const std::string&) { return std::nullopt; }),
              testing::MatchesRegex("first:2[0-9][0-9][0-9][0-9]"));
  EXPECT_EQ(meeting_point_on("first", [](const std::string&) { return std::optional<std::string>("there:7"); }),
            "there:7");
}

TEST(MeetingPoint, WithoutALauncherItIsANameOfItsOwn) {
  EXPECT_THAT(found({}), testing::StartsWith("unix:@orthant-"));
  EXPECT_NE(found({}), found({}));
}

TEST(MeetingPoint, TorchrunsAddressAndTheNextPortWhereItsAgentListens) {
  EXPECT_EQ(found(torchrun), "10.0.0.1:29500");
  EXPECT_EQ(found(with(torchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})), "10.0.0.1:29500");
  EXPECT_EQ(found(with(torchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})), "10.0.0.1:29501");
  for (const char* port : {"0", "70000", "x", "12x"}) {
    EXPECT_THROW(found(with(torchrun, {{"MASTER_PORT", port}})), ConfigError) << port;
  }
}

TEST(MeetingPoint, SlurmsFirstNodeAndAPortOfTheStep) {
  const auto host = [](const std::string& nodes) {
    const std::string address = found(with(slurm, {{"SLURM_STEP_NODELIST", nodes}}));
    return address.substr(0, address.find(':'));
  };
  EXPECT_EQ(host("one"), "one");
  EXPECT_EQ(host("gpu[03-07,12]"), "gpu03");
  EXPECT_EQ(host("gpu[3,7],other1"), "gpu3");
  EXPECT_EQ(host("a1,a2"), "a1");
  EXPECT_EQ(host("rack[1-2]-ib,x"), "rack1-ib");
  const Variables nodes = {{"SLURM_JOB_NODELIST", "n[1-2]"}};
  const std::string here = found(with(slurm, nodes));
  EXPECT_EQ(here, found(with(with(slurm, nodes), {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}})));  // of any rank
  EXPECT_NE(here, found(with(with(slurm, nodes), {{"SLURM_STEP_ID", "1"}})));
  const int port = std::stoi(here.substr(3));
  EXPECT_GE(port, 20000);
  EXPECT_LT(port, 30000);
  EXPECT_EQ(found(with(with(slurm, nodes), {{"MASTER_ADDR", "ib1"}, {"MASTER_PORT", "5000"}})), "ib1:5000");
}

TEST(MeetingPoint, OpenMpiSaysItOnOneMachineOnly) {
  const std::string here = found(with(openmpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}));
  EXPECT_THAT(here, testing::StartsWith("unix:@orthant-"));
  EXPECT_EQ(here, found(with(openmpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "3"}})));
  EXPECT_NE(here, found(with(openmpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}, {"PMIX_NAMESPACE", "job10"}})));
  EXPECT_EQ(found(with(openmpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}})), "");
}

}  // namespace
}  // namespace orthant::launch_test::meeting_point_test
