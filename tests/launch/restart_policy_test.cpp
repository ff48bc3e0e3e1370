#include "parallel/launch/restart_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace orthant::launch_test::restart_policy_test {
namespace {

FailedRound failed(const std::string& reason, std::int64_t step = -1, std::int64_t checkpoint = -1) {
  return {way_of("code 1", reason), step, checkpoint};
}

TEST(RestartPolicy, WaitsLongerAndLongerAndGivesUp) {
  RestartPolicy policy({.restarts = 8, .first_wait_seconds = 1, .longest_wait_seconds = 60}, -1);
  for (const double wait : {1, 2, 4, 8, 16, 32, 60, 60}) {
    EXPECT_EQ(policy.after(failed("no disk")).wait_seconds, wait);
  }
  EXPECT_EQ(policy.after(failed("no disk")).number, 0);
}

TEST(RestartPolicy, ProgressGivesTheAllowanceBack) {
  RestartPolicy policy({.restarts = 2}, 100);
  EXPECT_EQ(policy.after(failed("", -1, 100)).number, 1);
  EXPECT_EQ(policy.after(failed("", -1, 100)).number, 2);
  const auto after_checkpoint = policy.after(failed("", -1, 200));
  EXPECT_EQ(after_checkpoint.number, 1);
  EXPECT_EQ(after_checkpoint.wait_seconds, 1);
  EXPECT_EQ(policy.after(failed("a", 250, 200)).number, 1) << "steps count as well";
  EXPECT_EQ(policy.after(failed("b", 240, 200)).number, 2) << "but not those that were done before";
  EXPECT_EQ(policy.after(failed("c", 230, 200)).number, 0);
}

TEST(RestartPolicy, TheSameStepThatFailsTheSameWayIsNotTriedAgain) {
  RestartPolicy policy({.restarts = 9}, -1);
  EXPECT_EQ(policy.after(failed("rank 3: loss inf after 1.5 s", 41)).number, 1);
  EXPECT_EQ(policy.after(failed("rank 3: loss inf after 2.75 s", 42)).number, 1) << "another step";
  EXPECT_EQ(policy.after(failed("rank 3: no disk", 42)).number, 2) << "another way";
  const auto again = policy.after(failed("rank 7: no disk", 42));
  EXPECT_EQ(again.number, 0);
  EXPECT_THAT(again.why_not, testing::HasSubstr("step 43 failed twice in the same way"));
}

TEST(RestartPolicy, WhatTellsNothingOfTheNextStartIsTriedAgain) {
  RestartPolicy policy({.restarts = 9}, -1);
  for (int i = 1; i <= 3; ++i) {
    EXPECT_EQ(policy.after({.way = "", .step = 41, .checkpoint = -1}).number, i) << "killed from outside";
  }
  for (int i = 4; i <= 6; ++i) {
    EXPECT_EQ(policy.after(failed("no network")).number, i) << "before the first step";
  }
}

TEST(RestartPolicy, NoneAreMadeUnlessAskedFor) {
  RestartPolicy policy({}, -1);
  EXPECT_EQ(policy.after(failed("a", 3, 7)).number, 0);
}

}  // namespace
}  // namespace orthant::launch_test::restart_policy_test
