// Refusals of memory.limit: what they say, and that each change they name is accepted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/dry_run/promise.h"
#include "tests/plan/memory_refusal.h"
#include "tests/support/experiment.h"

namespace orthant::plan_test::memory_limit_test {
namespace {

using test::axes;
using test::experiment;
using test::joined;
using test::Overrides;

TEST(MemoryLimit, WhatFitsIsAccepted) {
  const Overrides overrides = {"moe.top_k=1"};
  const Need need = memory_need(experiment(overrides, axes(4, 4)));
  EXPECT_EQ(refusal_of(experiment(joined(overrides, {limit(need.worst)}), axes(4, 4))), "");
  EXPECT_THAT(refusal_of(experiment(joined(overrides, {limit(need.worst - 1)}), axes(4, 4))),
              testing::HasSubstr("memory.limit="));
}

TEST(MemoryLimit, TellsTheNeedByKindsAndThreeChangesThatFit) {
  const Overrides overrides = {"data.sequence_length=96", "model.layers=4"};
  const Need need = memory_need(experiment(overrides, axes(2)));
  const Refused found = refused(overrides, axes(2), need.worst - need.worst / 40);
  EXPECT_THAT(found.text, testing::HasSubstr("this run may need"));
  EXPECT_THAT(found.text, testing::ContainsRegex("would hold weights .*, gradients .*, states .*, activations "));
  EXPECT_THAT(found.text, testing::Not(testing::HasSubstr("only the worst routing"))) << "one rank has all experts";
  EXPECT_EQ(found.changes.size(), 3u) << found.text;
  EXPECT_THAT(found.changes, testing::Contains("memory.recompute = \"full\""));
  EXPECT_THAT(found.changes, testing::Contains("batch.micro_batch = 2"));
  EXPECT_THAT(found.changes, testing::Contains("plugins.data.zero = 1"));
}

TEST(MemoryLimit, WhereOnlyTheWorstRoutingDoesNotFitACapacityIsNamedFirst) {
  const Overrides overrides = {"moe.top_k=1", "data.sequence_length=96"};
  const Need need = memory_need(experiment(overrides, axes(4, 4)));
  const Refused found = refused(overrides, axes(4, 4), (need.worst + need.balanced) / 2);
  EXPECT_THAT(found.text, testing::HasSubstr("only the worst routing"));
  ASSERT_FALSE(found.changes.empty());
  EXPECT_THAT(found.changes.front(), testing::StartsWith("moe.capacity_factor = ")) << found.text;
}

TEST(MemoryLimit, NamesThePluginsOwnChanges) {
  const Overrides overrides = {"model.d_ff=256", "moe.experts=0"};
  const Need need = memory_need(experiment(overrides, axes(4)));
  EXPECT_THAT(refused(overrides, axes(4), need.worst - need.worst / 6).changes,
              testing::Contains("plugins.data.zero = 1"));
}

TEST(MemoryLimit, NamesUpdatesInTheBackwardPassWhereNothingIsClipped) {
  const char* const named = "optimizer.in_backward = true";
  for (const bool clips : {false, true}) {
    const Overrides overrides = {"model.d_ff=256", "moe.experts=0", "model.layers=6",
                                 fmt::format("optimizer.clip_grad_norm={}", clips ? 1 : 0)};
    const Need need = memory_need(experiment(overrides, axes(2)));
    const Refused found = refused(overrides, axes(2), need.worst - need.worst / 10);
    EXPECT_EQ(testing::Value(found.changes, testing::Contains(named)), !clips) << found.text;
  }
}

TEST(MemoryLimit, WhatNothingReachesIsSaid) {
  EXPECT_THAT(refusal_of(experiment({limit(1000)}, axes(2))), testing::HasSubstr("No change was found that fits"));
}

}  // namespace
}  // namespace orthant::plan_test::memory_limit_test
