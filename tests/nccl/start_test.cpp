#include "plugins/nccl/start.h"
#include "tests/support/error_of.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include <orthant/error.h>

namespace orthant::nccl::start_test {
namespace {

using Variables = std::map<std::string, std::string>;

RendezvousConfig start(int rank, int world, const Variables& variables) {
  CommunicatorConfig config;
  config.rank = rank;
  config.world_size = world;
  config.timeout_seconds = 7;
  return rendezvous_config(config, [&](const char* name) -> std::optional<std::string> {
    const auto at = variables.find(name);
    return at == variables.end() ? std::nullopt : std::optional<std::string>(at->second);
  });
}

std::string refused(int rank, int world, const Variables& variables) {
  return orthant::test::error_of([&] { start(rank, world, variables); });
}

TEST(NcclStart, TheAddressComesFromTheLauncher) {
  const RendezvousConfig config = start(1, 4, {{"ORTHANT_RENDEZVOUS", "node1:20007"}, {"ORTHANT_SECRET", "s"}});
  EXPECT_EQ(config.address, "node1:20007");
  EXPECT_EQ(config.rank, 1);
  EXPECT_EQ(config.world_size, 4);
  EXPECT_EQ(config.timeout_seconds, 7);
}

TEST(NcclStart, TheSecretComesFromTheLauncherItselfOrInAFile) {
  const Variables there = {{"ORTHANT_RENDEZVOUS", "a:1"}};
  Variables value = there, file = there;
  value["ORTHANT_SECRET"] = "s";
  file["ORTHANT_SECRET_FILE"] = "runs/.x.secret";
  EXPECT_EQ(start(0, 2, value).secret.value, "s");
  EXPECT_EQ(start(1, 2, file).secret.file, "runs/.x.secret");
  EXPECT_THAT(refused(1, 2, there), testing::HasSubstr("set ORTHANT_SECRET to the same 32 or more random characters"));
}

TEST(NcclStart, RunsAreToldApart) {
  const Variables one = {
      {"ORTHANT_RENDEZVOUS", "a:1"}, {"ORTHANT_SECRET", "s"}, {"ORTHANT_RUN_DIR", "runs/x"}, {"SLURM_JOB_ID", "1"}};
  Variables other = one, rank_of_one = one;
  other["ORTHANT_RUN_DIR"] = "runs/y";
  rank_of_one["SLURM_PROCID"] = "3";
  EXPECT_NE(start(0, 2, one).job, start(0, 2, other).job);
  EXPECT_EQ(start(0, 2, one).job, start(1, 2, rank_of_one).job);
}

TEST(NcclStart, WhatIsMissingIsSaid) {
  EXPECT_THAT(refused(0, 2, {}), testing::HasSubstr("set ORTHANT_RENDEZVOUS=host:port for every rank"));
  EXPECT_THAT(refused(-1, -1, {{"ORTHANT_RENDEZVOUS", "a:1"}}),
              testing::HasSubstr("start the ranks with `orthant launch`"));
  EXPECT_EQ(refused(0, 1, {}), "no error");
}

}  // namespace
}  // namespace orthant::nccl::start_test
