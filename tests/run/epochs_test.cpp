// run.epochs stands for steps, which follow from the data; and a run that becomes longer says what that moves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/program.h"

namespace orthant::run_test::epochs_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class Epochs : public testing::Test {
 protected:
  void SetUp() override {
    std::string rows;
    for (int i = 0; i < 5; ++i) {
      rows += "{\"prompt\": \"a\", \"completion\": \"b\"}\n";
    }
    folder_.write("chat.jsonl", rows);
    folder_.write("c.toml", tiny_config({2, 2}));
  }
  Result orthant(const char* command, std::vector<std::string> more, std::vector<std::string> words = {}) {
    const std::vector<std::string> values = {
        "data.source=chat",           "data.path=chat.jsonl", "data.chat_template=plain", "data.documents=separate",
        "data.validation_fraction=0", "run.validate_every=0", "batch.sequences=2",        "data.sequence_length=32"};
    more.insert(more.begin(), values.begin(), values.end());
    words.insert(words.begin(), {command, "c.toml"});
    return folder_.orthant(with_set(words, more));
  }
  ProgramFolder folder_;
};

TEST_F(Epochs, AreTheSameStepsInEveryLayout) {
  const Result two = orthant("train", {"run.epochs=2"});  // 10 sequences, 2 a step
  ASSERT_EQ(two.code, 0) << two.error;
  EXPECT_THAT(two.output, HasSubstr("data: 5 sequences to train on, 115 tokens; 5 steps read 10 sequences, 2 epochs"));
  EXPECT_EQ(folder_.losses().size(), 5u);
  const Result one = orthant("train", {"run.epochs=2", "run.name=one", "plugins.data.size=1", "plugins.expert.size=1"});
  ASSERT_EQ(one.code, 0) << one.error;
  EXPECT_EQ(folder_.losses("one").size(), 5u);
  EXPECT_THAT(launch_test::read_file(folder_.run("one") / "config.resolved.toml"),
              AllOf(HasSubstr("steps = 5"), HasSubstr("run.epochs = 2 of 5 sequences")));
  EXPECT_THAT(orthant("config", {"run.epochs=0.5", "batch.grow_after=[1]", "batch.grow_to=[4]"}).output,
              HasSubstr(", 2 steps,"));
  // A file that says both leaves it open; a later one decides.
  folder_.write("both.toml", "extends = [\"c.toml\"]\n[run]\nsteps = 3\nepochs = 1\n");
  const Result both = folder_.orthant({"config", "both.toml"});
  EXPECT_EQ(both.code, 78);
  EXPECT_THAT(both.error, AllOf(HasSubstr("both.toml:4"), HasSubstr("leave one out")));
  folder_.write("epochs.toml", "extends = [\"c.toml\"]\n[run]\nepochs = 1\n");
  EXPECT_THAT(folder_.orthant({"config", "epochs.toml", "--set", "run.steps=7"}).output, HasSubstr(", 7 steps,"));
  const Result endless =
      folder_.orthant(with_set({"train", "c.toml"}, {"data.source=synthetic", "run.epochs=1", "run.validate_every=0"}));
  EXPECT_EQ(endless.code, 78);
  EXPECT_THAT(endless.error, HasSubstr("has no end"));
}

TEST_F(Epochs, ALongerRunSaysHowTheLearningRateMoves) {
  ASSERT_EQ(orthant("train", {"run.epochs=2", "optimizer.schedule=cosine"}).code, 0);
  const Result longer = orthant("train", {"run.epochs=4", "optimizer.schedule=cosine"}, {"--resume", "auto"});
  ASSERT_EQ(longer.code, 0) << longer.error;
  EXPECT_THAT(longer.error, AllOf(HasSubstr("settings other than the checkpoint's"),
                                  HasSubstr("run.steps = 10 (was 5)"), HasSubstr("learning rate of step 6")));
  ASSERT_EQ(orthant("train", {"run.steps=2", "run.name=flat", "optimizer.schedule=constant"}).code, 0);
  const Result flat =
      orthant("train", {"run.steps=4", "run.name=flat", "optimizer.schedule=constant"}, {"--resume", "auto"});
  ASSERT_EQ(flat.code, 0) << flat.error;
  EXPECT_THAT(flat.error, Not(HasSubstr("run.steps")));
}

}  // namespace
}  // namespace orthant::run_test::epochs_test
