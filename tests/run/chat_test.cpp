// Training on conversations, some of which have no answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/program.h"

namespace orthant::run_test::chat_test {
namespace {

using testing::HasSubstr;

TEST(ChatRun, AStepWithoutAnAnswerHasTheLossZeroAndIsSaid) {
  ProgramFolder folder;
  const std::string question = "{\"messages\": [{\"role\": \"user\", \"content\": \"why?\"}]}\n";
  folder.write("chat.jsonl", question + "{\"prompt\": \"a\", \"completion\": \"b\"}\n" + question);
  folder.write("c.toml", tiny_config({2, 2}));
  const Result trained = folder.orthant(
      with_set({"train", "c.toml"},
               {"data.source=chat", "data.path=chat.jsonl", "data.chat_template=plain", "data.documents=separate",
                "data.validation_fraction=0", "run.validate_every=0", "batch.sequences=2", "data.sequence_length=32"}));
  ASSERT_EQ(trained.code, 0) << trained.error;
  EXPECT_THAT(trained.error, HasSubstr("2 of 3 conversations have no token of an answer"));
  EXPECT_THAT(trained.output + trained.error, HasSubstr("has no token that counts in the loss"));
  const std::vector<double> losses = folder.losses();
  ASSERT_EQ(losses.size(), 8u);
  // Two sequences a step of epochs of three: some steps are two questions.
  const auto silent = std::count(losses.begin(), losses.end(), 0.0);
  EXPECT_GT(silent, 0);
  EXPECT_LT(silent, 8);
  EXPECT_TRUE(std::all_of(losses.begin(), losses.end(), [](double loss) { return std::isfinite(loss); }));
}

}  // namespace
}  // namespace orthant::run_test::chat_test
