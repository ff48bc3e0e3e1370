// A run whose batch grows: what it leaves, how it is resumed in the middle of the growth, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/run/metrics.h"
#include "tests/support/program.h"

namespace orthant::run_test::growing_batch_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// Sixteen tokens a sequence; the checkpoint of step 4 lies between the two growths.
class GrowingRun : public testing::Test {
 protected:
  GrowingRun() { folder_.write("c.toml", tiny_config({2, 2})); }
  Result train(const std::vector<std::string>& values, std::vector<std::string> words = {}) {
    words.insert(words.begin(), {"train", "c.toml"});
    const std::vector<std::string> growing = {"batch.grow_after=[2, 5]", "batch.grow_to=[8, 16]",
                                              "batch.micro_batch=2"};
    return folder_.orthant(with_set(with_set(words, growing), values));
  }
  std::vector<nlohmann::json> lines(const std::string& run) const {
    std::vector<nlohmann::json> all;
    for (const std::string& line : lines_of(folder_.run(run) / "metrics.jsonl")) {
      all.push_back(nlohmann::json::parse(line));
    }
    return all;
  }
  std::vector<std::int64_t> numbers(const std::string& run, const char* key) const {
    std::vector<std::int64_t> all;
    for (const nlohmann::json& line : lines(run)) {
      all.push_back(line.at(key).get<std::int64_t>());
    }
    return all;
  }
  ProgramFolder folder_;
};

TEST_F(GrowingRun, TellsOfItAndGoesOnBitwiseInTheMiddle) {
  const Result whole = train({"run.name=\"whole\"", "optimizer.ema_decay=0.9"});
  ASSERT_EQ(whole.code, 0) << whole.error;
  EXPECT_THAT(whole.output, HasSubstr("4 sequences a step, 8 after 2 steps, 16 after 5"));
  EXPECT_THAT(numbers("whole", "batch_sequences"), ElementsAre(4, 4, 8, 8, 8, 16, 16, 16));
  EXPECT_THAT(numbers("whole", "tokens"), ElementsAre(64, 128, 256, 384, 512, 768, 1024, 1280));
  const Result rest =
      train({"run.name=\"rest\"", "optimizer.ema_decay=0.9"}, {"--resume", folder_.checkpoint(4, "whole").string()});
  ASSERT_EQ(rest.code, 0) << rest.error;
  EXPECT_THAT(rest.error, Not(HasSubstr("settings other than")));
  EXPECT_THAT(differences(folder_.checkpoint(8, "whole"), folder_.checkpoint(8, "rest")), IsEmpty());
  EXPECT_THAT(numbers("rest", "batch_sequences"), ElementsAre(8, 16, 16, 16));
  EXPECT_THAT(numbers("rest", "tokens"), ElementsAre(512, 768, 1024, 1280));

  const Result other =
      train({"run.name=\"other\"", "optimizer.ema_decay=0.9", "plugins.data.size=1", "plugins.expert.size=1"},
            {"--resume", folder_.checkpoint(4, "whole").string()});
  ASSERT_EQ(other.code, 0) << other.error;
  const std::vector<double> all = folder_.losses("whole"), alike = folder_.losses("other");
  ASSERT_EQ(alike.size(), 4u);
  for (std::size_t i = 0; i < alike.size(); ++i) {
    EXPECT_NEAR(alike[i], all[i + 4], 1e-5 * all[i + 4]);
  }
}

// A run that has begun with one size goes on with a larger one, and reads on where it was.
TEST_F(GrowingRun, MayBeDecidedWhereARunHasCome) {
  // The rate of a step does not depend on how many there will be.
  const std::vector<std::string> alike = {"batch.micro_batch=2", "optimizer.schedule=\"constant\""},
                                 growing = {"batch.grow_after=[4]", "batch.grow_to=[12]"};
  ASSERT_EQ(folder_.orthant(with_set(with_set({"train", "c.toml"}, alike), {"run.steps=4"})).code, 0);
  const Result rest = folder_.orthant(with_set(with_set({"train", "c.toml", "--resume", "auto"}, alike), growing));
  ASSERT_EQ(rest.code, 0) << rest.error;
  EXPECT_THAT(rest.error,
              AllOf(HasSubstr("batch.grow_after = [4] (was [])"), HasSubstr("batch.grow_to = [12] (was [])")));
  EXPECT_THAT(numbers("r", "batch_sequences"), ElementsAre(4, 4, 4, 4, 12, 12, 12, 12));
  const Result whole =
      folder_.orthant(with_set(with_set(with_set({"train", "c.toml"}, alike), growing), {"run.name=\"at_once\""}));
  ASSERT_EQ(whole.code, 0) << whole.error;
  EXPECT_EQ(folder_.losses("r"), folder_.losses("at_once"));
  EXPECT_THAT(differences(folder_.checkpoint(8), folder_.checkpoint(8, "at_once")), IsEmpty());
}

TEST_F(GrowingRun, IsRefusedBeforeRanksStart) {
  const Result odd = train({"batch.grow_to=[8, 18]"});
  EXPECT_EQ(odd.code, 78);
  EXPECT_THAT(odd.error,
              AllOf(HasSubstr("[batch] grow_to: 18 sequences do not divide among 2 ranks in micro-batches of 2"),
                    HasSubstr("write a multiple of 4")));
  const Result late = train({"run.steps=5", "plugins.data.size=1", "plugins.expert.size=1"});
  EXPECT_EQ(late.code, 0);
  EXPECT_THAT(late.error, HasSubstr("the batch grows to 16 sequences after 5 steps, and the run has 5"));
  EXPECT_EQ(train({"batch.grow_to=[8]"}).code, 78);
  const Result peer = folder_.orthant(
      {"bench", "peer-data", "c.toml", "-o", "peer", "--set", "batch.grow_after=[2]", "--set", "batch.grow_to=[8]"});
  EXPECT_EQ(peer.code, 78);
  EXPECT_THAT(peer.error, HasSubstr("[batch] grow_to: peer data are batches of one size"));
}

TEST_F(GrowingRun, CommandsShowIt) {
  const std::vector<std::string> growing = {"batch.grow_after=[2, 5]", "batch.grow_to=[8, 16]"};
  const Result shown = folder_.orthant(with_set({"config", "c.toml"}, growing));
  EXPECT_THAT(shown.output,
              HasSubstr("grows   4 sequences a step, 8 after 2 steps, 16 after 5; 1280 tokens in the 8 steps"));
  const Result verified = folder_.orthant(with_set({"verify", "c.toml"}, growing));
  EXPECT_EQ(verified.code, 0) << verified.output << verified.error;
  EXPECT_THAT(verified.output,
              AllOf(HasSubstr("the batch grows within them: 4 sequences a step, 8 after 1 step, 16 after 2"),
                    HasSubstr("\nequal")));
  const Result planned = folder_.orthant(with_set({"plan", "c.toml"}, growing));
  EXPECT_THAT(planned.output,
              AllOf(HasSubstr("the batch grows: 4 sequences a step, 8 after 2 steps, 16 after 5"),
                    HasSubstr("that of step 6, of 16 sequences"), HasSubstr("collectives of rank 0 in step 6")));
  const auto sent = [&](const std::string& step) {
    const Result plan = folder_.orthant(with_set({"plan", "c.toml", "--json", "--step", step}, growing));
    const nlohmann::json json = nlohmann::json::parse(plan.output);
    return std::pair(json.at("step_sequences").get<int>(), json.at("memory").at(0));
  };
  const auto [few, first] = sent("1");
  const auto [many, last] = sent("6");
  EXPECT_EQ(few, 4);
  EXPECT_EQ(many, 16);
  EXPECT_EQ(first.at("peak_bytes"), last.at("peak_bytes"));
  EXPECT_LT(first.at("sent_bytes"), last.at("sent_bytes"));
}

// Of the time that is left each step has its share by its sequences.
TEST(GrowingProgress, ForeseesLongerSteps) {
  Settings settings;
  settings.run.steps = 10;
  settings.batch = {.sequences = 8, .micro_batch = 0, .grow_after = {4}, .grow_to = {16}};
  StepReport report;
  report.step = 1;
  MetricsLine line;
  line.report = &report;
  line.step_seconds = 1;
  EXPECT_THAT(Progress(settings, 0, 0).text(line, 20), HasSubstr("ETA 2m20s"))
      << "16 sequences in 20 s; 16 + 96 are left";
  report.step = 5;
  EXPECT_THAT(Progress(settings, 4, 0).text(line, 20), HasSubstr("ETA 40s")) << "32 since step 4; 64 are left";
}

// The line with a validation loss stays on a terminal, and is whole in a narrow one.
TEST(ProgressOnATerminal, CutsTheLineThatMovesAlone) {
  Settings settings;
  settings.run.steps = 10;
  StepReport report;
  report.loss = 2.5;
  MetricsLine line;
  line.report = &report;
  Progress progress(settings, 0, 20);
  testing::internal::CaptureStdout();
  progress.show(line, 1);
  line.validation.emplace().loss = 2.25;
  progress.show(line, 1);
  progress.finish();
  const std::string shown = testing::internal::GetCapturedStdout();
  EXPECT_THAT(shown, testing::StartsWith("\rstep 1/10  loss 2.5\x1b[K\rstep 1/10  loss 2.5000  "));
  EXPECT_THAT(shown, testing::EndsWith("  validation 2.2500\x1b[K\n"));
}

}  // namespace
}  // namespace orthant::run_test::growing_batch_test
