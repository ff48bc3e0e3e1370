// Layouts that cannot work are refused before any rank starts, with what to change.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/experiment.h"

namespace orthant::refusals_test {
namespace {

using test::axes;
using test::experiment;
using test::refusal;
using testing::AllOf;
using testing::HasSubstr;

TEST(Refusals, NothingWhereAllDivides) {
  EXPECT_EQ(refusal({}, axes(0)), "(accepted with 1 ranks)");
  EXPECT_EQ(refusal({}, axes(8, 4)), "(accepted with 8 ranks)");
}

TEST(Refusals, SequencesThatDoNotDivideAmongRanks) {
  EXPECT_THAT(refusal({"batch.sequences=6"}, axes(4)),
              AllOf(HasSubstr("6 units of dim 'batch'"), HasSubstr("4 ranks"), HasSubstr("'data'")));
}

TEST(Refusals, FewerSequencesThanRanks) {
  EXPECT_THAT(refusal({"batch.sequences=2"}, axes(4)),
              AllOf(HasSubstr("2 units of dim 'batch'"), HasSubstr("4 ranks")));
}

TEST(Refusals, MicroBatchesThatDoNotDivideARanksShare) {
  EXPECT_THAT(refusal({"batch.sequences=24", "batch.micro_batch=4"}, axes(4)),
              AllOf(HasSubstr("batch.micro_batch = 4"), HasSubstr("6 sequences")));
}

// Each size of a batch that grows.
TEST(Refusals, SizesOfAGrowingBatchThatDoNotDivide) {
  const test::Overrides growing = {"batch.grow_after=[10, 20]", "batch.grow_to=[16, 20]"};
  EXPECT_THAT(refusal(test::joined(growing, {"batch.micro_batch=2"}), axes(4)),
              AllOf(HasSubstr("grow_to: 20 sequences do not divide among 4 ranks in micro-batches of 2"),
                    HasSubstr("write a multiple of 8")));
  EXPECT_EQ(refusal(test::joined(growing, {"batch.micro_batch=1"}), axes(4)), "(accepted with 4 ranks)");
  const std::string interleaved = "[plugins.pipeline]\nsize = 2\nschedule = \"interleaved\"\nchunks = 2\n";
  EXPECT_THAT(
      refusal({"batch.grow_after=[10]", "batch.grow_to=[12]", "batch.micro_batch=4", "model.layers=4"}, interleaved),
      AllOf(HasSubstr("the 3 micro-batches of a step do not divide by size = 2"), HasSubstr("batch.grow_to (12)")));
}

TEST(Refusals, GroupsOfTokensThatDoNotFitAMicroBatch) {
  EXPECT_THAT(refusal({"moe.group_tokens=48"}, axes(8)),
              AllOf(HasSubstr("moe.group_tokens = 48"), HasSubstr("12 tokens of a micro-batch")));
}

TEST(Refusals, ExpertsThatDoNotDivideAmongRanks) {
  EXPECT_THAT(refusal({"moe.experts=6"}, axes(4, 4)),
              AllOf(HasSubstr("6 units of dim 'expert'"), HasSubstr("axis 'expert'"), HasSubstr("[plugins.expert]")));
}

TEST(Refusals, ExpertRanksThatDoNotDivideTheTokenRanks) {
  EXPECT_THAT(refusal({"moe.experts=6"}, axes(4, 3)), AllOf(HasSubstr("size 3"), HasSubstr("4 ranks")));
}

TEST(Refusals, ExpertRanksWithoutTokenRanks) {
  EXPECT_THAT(refusal({}, axes(0, 2)), HasSubstr("carved"));
}

TEST(Refusals, ExpertRanksOfADenseModel) {
  EXPECT_THAT(refusal({"moe.experts=0"}, axes(2, 2)),
              AllOf(HasSubstr("the model has no experts"), HasSubstr("[plugins.expert]")));
}

}  // namespace
}  // namespace orthant::refusals_test
