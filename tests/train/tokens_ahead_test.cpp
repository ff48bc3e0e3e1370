// What multi-token prediction is asked for, position by position.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/data/tokens_ahead.h"
#include "tests/support/experiment.h"

namespace orthant::tokens_ahead_test {
namespace {

using testing::ElementsAre;

// Two rows of six: a stream of text; and documents of three and two tokens with padding behind them. The label behind a
// document is none, as it is where a source packs documents.
HostBatch rows() {
  HostBatch batch;
  batch.sequences = 2;
  batch.positions = 6;
  batch.token = {10, 11, 12, 13, 14, 15, 20, 21, 22, 30, 31, 0};
  batch.label = {11, 12, 13, 14, 15, 16, 21, 22, -1, 31, 32, -1};
  batch.position = {0, 1, 2, 3, 4, 5, 0, 1, 2, 0, 1, 0};
  batch.first = {0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 3, 5};
  batch.valid = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0};
  batch.index = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  return batch;
}

TEST(TokensAhead, StopAtTheEndOfASequenceOrDocument) {
  const HostBatch one = tokens_ahead(rows(), 1), two = tokens_ahead(rows(), 2);
  EXPECT_THAT(one.label, ElementsAre(12, 13, 14, 15, 16, -1, 22, -1, -1, 32, -1, -1));
  EXPECT_THAT(two.label, ElementsAre(13, 14, 15, 16, -1, -1, -1, -1, -1, -1, -1, -1));
  EXPECT_THAT(one.token, ElementsAre(11, 12, 13, 14, 15, 16, 21, 22, 0, 31, 32, 0));
  EXPECT_THAT(two.token, ElementsAre(12, 13, 14, 15, 16, 0, 22, 0, 0, 32, 0, 0));
  EXPECT_EQ(one.valid, rows().valid);
}

// Labels that do not count, as those of a conversation's questions, are not asked for, but their tokens are read.
TEST(TokensAhead, KeepWhatDoesNotCount) {
  HostBatch batch = rows();
  batch.label[2] = batch.label[3] = -1;
  const HostBatch one = tokens_ahead(batch, 1);
  EXPECT_THAT(std::vector(one.label.begin(), one.label.begin() + 6), ElementsAre(12, -1, -1, 15, 16, -1));
  EXPECT_THAT(std::vector(one.token.begin(), one.token.begin() + 6), ElementsAre(11, 12, 13, 14, 15, 16));
}

// A depth learns, and what it learns helps nobody at a weight of 0.
TEST(MtpTraining, ItsLossFalls) {
  test::OneRank rank(test::experiment({"model.mtp_depth=2", "train.mtp_weight=0.5", "optimizer.lr=0.01"}));
  const StepReport before = rank->trainer().step(0);
  StepReport after;
  for (int step = 1; step < 40; ++step) {
    after = rank->trainer().step(step);
  }
  EXPECT_LT(after.loss, before.loss - 0.2);
  EXPECT_LT(after.figures.at("mtp_loss"), before.figures.at("mtp_loss") - 0.1);
}

// A batch whose documents are too short for a depth has no loss there, and nothing is divided by 0.
TEST(MtpTraining, DocumentsTooShortForADepthHaveNoLoss) {
  HostBatch batch = rows();
  batch.label = {11, -1, 13, -1, 15, -1, 21, -1, 23, -1, 31, -1};
  batch.first = {0, 0, 2, 2, 4, 4, 0, 0, 2, 2, 4, 4};
  batch.position = {0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1};
  batch.valid.assign(12, 1);
  batch.token = {10, 11, 12, 13, 14, 15, 20, 21, 22, 23, 30, 31};
  const test::FixedSource source(batch, 40);
  test::OneRank rank(
      test::experiment({"model.mtp_depth=1", "model.vocab_size=40", "data.sequence_length=6", "batch.sequences=2"}),
      &source);
  const StepReport report = rank->trainer().step(0);
  EXPECT_EQ(report.figures.at("mtp_loss"), 0);
  EXPECT_GT(report.loss, 1);
}

}  // namespace
}  // namespace orthant::tokens_ahead_test
