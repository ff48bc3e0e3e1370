// Averages of the weights as a user meets them: keys, resuming, --ema.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/checkpoint/checkpoint.h"
#include "tests/support/program.h"

namespace orthant::run_test::averages_test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class AverageRuns : public testing::Test {
 protected:
  AverageRuns() { folder_.write("c.toml", tiny_config({2, 2})); }
  Result train(const std::string& name, std::vector<std::string> values, std::vector<std::string> words = {}) {
    words.insert(words.begin(), {"train", "c.toml"});
    values.push_back("run.name=\"" + name + "\"");
    return folder_.orthant(with_set(words, values));
  }
  ProgramFolder folder_;
};

const std::string ema = "optimizer.ema_decay=0.5";

TEST_F(AverageRuns, GoOnBitForBit) {
  const std::vector<std::string> sets = {ema, "optimizer.lr_of=[\"*.gate.weight\"]", "optimizer.lr_scales=[0.5]"};
  const Result first = train("whole", sets);
  ASSERT_EQ(first.code, 0) << first.error;
  EXPECT_THAT(first.output, HasSubstr("\"*.gate.weight\" learns at 0.5 times the rate: 2 parameters"));
  const Result second = train("rest", sets, {"--resume", folder_.checkpoint(4, "whole").string()});
  ASSERT_EQ(second.code, 0) << second.error;
  EXPECT_THAT(second.error, Not(HasSubstr("warning")));
  EXPECT_THAT(differences(folder_.checkpoint(8, "whole"), folder_.checkpoint(8, "rest")), IsEmpty());
}

TEST_F(AverageRuns, BeginAndEndInTheMiddleOfARun) {
  ASSERT_EQ(train("r", {"run.steps=4"}).code, 0);
  const Result begins = train("r", {"run.steps=8", ema}, {"--resume", "auto"});
  ASSERT_EQ(begins.code, 0) << begins.error;
  EXPECT_THAT(begins.error, AllOf(HasSubstr("optimizer.ema_decay = 0.5 (was 0.0)"),
                                  HasSubstr("has no averages of the weights: they begin as its weights")));
  const Result ends = train("r", {"run.steps=9"}, {"--resume", "auto"});
  ASSERT_EQ(ends.code, 0) << ends.error;
  EXPECT_THAT(ends.error, HasSubstr("are left out: optimizer.ema_decay is 0 here"));
}

TEST_F(AverageRuns, AreTakenByWhoAsks) {
  ASSERT_EQ(train("r", {ema, "optimizer.lr=0.01"}).code, 0);
  const std::vector<std::string> eval = {"eval", "runs/r", "text.txt", "--json"};
  const std::vector<std::string> generate = {"generate",      "runs/r", "--prompt",     "The ", "--json",
                                             "--temperature", "0",      "--max-tokens", "4",    "--log-probabilities"};
  for (std::vector<std::string> words : {eval, generate}) {
    const Result plain = folder_.orthant(words);
    words.push_back("--ema");
    const Result averaged = folder_.orthant(words);
    ASSERT_EQ(plain.code, 0) << plain.error;
    ASSERT_EQ(averaged.code, 0) << averaged.error;
    EXPECT_NE(plain.output, averaged.output);
    EXPECT_THAT(averaged.error, HasSubstr("reads the averages of the weights in "));
  }
  const Result verified =
      folder_.orthant({"generate", "runs/r", "--prompt", "The ", "--ema", "--verify", "--max-tokens", "4", "--set",
                       "moe.router=\"topk\"", "--set", "moe.capacity_factor=0"});
  EXPECT_EQ(verified.code, 0) << verified.error;
  const Result exported = folder_.orthant({"export", "runs/r", "-o", "out", "--ema"});
  EXPECT_EQ(exported.code, 0) << exported.error;
  EXPECT_THAT(exported.output, HasSubstr("from the averages of the weights in "));
  const Result published = folder_.orthant({"eval", "out", "text.txt", "--ema"});
  EXPECT_EQ(published.code, 78);
}

TEST_F(AverageRuns, WhereThereAreNoneThatIsSaid) {
  ASSERT_EQ(train("r", {"run.steps=1"}).code, 0);
  for (std::vector<std::string> words : std::vector<std::vector<std::string>>{{"export", "runs/r", "-o", "out"},
                                                                              {"eval", "runs/r", "text.txt"},
                                                                              {"generate", "runs/r", "--prompt", "A"},
                                                                              {"serve", "runs/r", "--port", "0"}}) {
    words.push_back("--ema");
    const Result refused = folder_.orthant(words);
    EXPECT_EQ(refused.code, 78) << words[0];
    EXPECT_THAT(refused.error, AllOf(HasSubstr("has no averages of the weights: leave --ema out"),
                                     HasSubstr("optimizer.ema_decay=0.999")));
  }
}

}  // namespace
}  // namespace orthant::run_test::averages_test
