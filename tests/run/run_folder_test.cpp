// What a run leaves in its folder, and what becomes of an earlier run of the same name.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/run/run_folder.h"
#include "tests/support/program.h"

namespace orthant::run_test::run_folder_test {
namespace {

namespace fs = std::filesystem;
using orthant::launch_test::read_file;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class RunFolderTest : public testing::Test {
 protected:
  RunFolderTest() { folder_.write("c.toml", tiny_config({2, 2})); }
  Result train(const std::vector<std::string>& values, std::vector<std::string> words = {}) {
    words.insert(words.begin(), {"train", "c.toml"});
    return folder_.orthant(with_set(words, values));
  }
  std::vector<nlohmann::json> metrics(const std::string& name = "r") const {
    std::vector<nlohmann::json> lines;
    for (const std::string& line : lines_of(folder_.run(name) / "metrics.jsonl")) {
      lines.push_back(nlohmann::json::parse(line));
    }
    return lines;
  }
  std::vector<int> steps(const std::string& name = "r") const {
    std::vector<int> found;
    for (const nlohmann::json& line : metrics(name)) {
      found.push_back(line.at("step"));
    }
    return found;
  }
  ProgramFolder folder_;
};

// The limit is what "full" needs and "none" does not keep: all ranks find the same, and stay below it.
TEST_F(RunFolderTest, KeepsAMemoryLimitByRecomputing) {
  const auto need = [&](const char* recompute) {
    const Result plan =
        folder_.orthant({"plan", "c.toml", "--json", "--set", std::string("memory.recompute=") + recompute});
    return nlohmann::json::parse(plan.output).at("memory").at(0).at("worst_peak_bytes").get<std::int64_t>();
  };
  const std::int64_t limit = need("\"full\"");
  ASSERT_LT(limit, need("\"none\""));
  const std::string set = fmt::format("memory.limit={}", limit);
  const Result refused = train({set});
  EXPECT_EQ(refused.code, 78) << refused.output;
  EXPECT_THAT(refused.error, HasSubstr("memory.recompute = \"full\""));
  const Result kept = train({set, "memory.recompute=\"fit\""});
  ASSERT_EQ(kept.code, 0) << kept.error;
  EXPECT_THAT(kept.error, HasSubstr("memory.recompute = \"fit\" is \"full\" here"));
  EXPECT_THAT(read_file(folder_.run() / "config.resolved.toml"), HasSubstr("recompute = \"fit\""));
  for (const nlohmann::json& line : metrics()) {
    EXPECT_LE(line.at("peak_bytes").get<std::int64_t>(), limit);
  }
}

TEST_F(RunFolderTest, HoldsConfigurationMetricsLogsAndCheckpoints) {
  const Result result = train(
      {"run.steps=6", "run.validate_every=4", "run.log_every=3", "data.validation_sequences=4", "run.peak_tflops=0.5"});
  ASSERT_EQ(result.code, 0) << result.error;
  EXPECT_THAT(read_file(folder_.run() / "config.resolved.toml"), HasSubstr("steps = 6"));
  EXPECT_THAT(read_file(folder_.run() / "logs/rank_0.log"), HasSubstr("done: 6 steps"));
  EXPECT_TRUE(fs::exists(folder_.run() / "logs/rank_1.log"));
  EXPECT_TRUE(fs::exists(folder_.checkpoint(4)) && fs::exists(folder_.checkpoint(6)));
  EXPECT_THAT(result.output, HasSubstr("checkpoints/step_000006"));
  // A resolved configuration is one: the same run again, from it alone.
  fs::copy_file(folder_.run() / "config.resolved.toml", folder_.path("again.toml"));
  EXPECT_EQ(folder_.orthant({"config", "again.toml"}).code, 0);

  EXPECT_THAT(steps(), ElementsAre(1, 3, 4, 6));  // the first, every third, where validation was measured, the last
  for (const nlohmann::json& line : metrics()) {
    const int step = line.at("step");
    EXPECT_EQ(line.at("tokens"), step * 64);  // 4 sequences of 16, cumulative
    for (const char* key : {"loss", "aux_loss", "z_loss", "grad_norm", "lr", "tokens_per_second", "step_seconds",
                            "expert_load_max_over_mean"}) {
      EXPECT_GT(line.at(key).get<double>(), 0) << key;
    }
    EXPECT_NEAR(line.at("tokens_per_second").get<double>() * line.at("step_seconds").get<double>(), 64, 1e-6);
    EXPECT_GT(line.at("peak_bytes").get<std::int64_t>(), 0);
    std::int64_t by_kind = 0;
    for (const auto& [kind, bytes] : line.at("peak_by_kind").items()) {
      by_kind += bytes.get<std::int64_t>();
    }
    EXPECT_EQ(line.at("peak_bytes").get<std::int64_t>(), by_kind);
    EXPECT_GT(line.at("peak_by_kind").at("activations").get<std::int64_t>(), 0);
    EXPECT_EQ(line.contains("validation_loss"), step == 4 || step == 6);
    // The share of what two ranks could do does not depend on how long the step took.
    EXPECT_GT(line.at("mfu").get<double>() * line.at("step_seconds").get<double>(), 0);

    // 64 tokens choose two experts each, in each of two layers: what no expert computed was dropped.
    std::int64_t computed = 0;
    EXPECT_EQ(line.at("expert_tokens").size(), 2u);
    for (const auto& [layer, tokens] : line.at("expert_tokens").items()) {
      EXPECT_EQ(tokens.size(), 4u);
      for (const nlohmann::json& count : tokens) {
        computed += count.get<std::int64_t>();
      }
    }
    const std::int64_t dropped =
        line.at("dropped_by_capacity").get<std::int64_t>() + line.at("dropped_by_chance").get<std::int64_t>();
    EXPECT_EQ(computed + dropped, 64 * 2 * 2);
    EXPECT_NEAR(line.at("drop_rate").get<double>(), static_cast<double>(dropped) / 256, 1e-12);
  }
}

TEST_F(RunFolderTest, KeepsTheLastCheckpoints) {
  ASSERT_EQ(train({"run.steps=7", "run.checkpoint_every=1", "run.keep=2"}).code, 0);
  std::vector<std::string> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_.run() / "checkpoints")) {
    found.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(found, testing::UnorderedElementsAre("step_000006", "step_000007"));
}

TEST_F(RunFolderTest, KeepsTheCheckpointsOfMultiplesToo) {
  ASSERT_EQ(train({"run.steps=7", "run.checkpoint_every=1", "run.keep=1", "run.keep_every=3"}).code, 0);
  for (int step = 1; step <= 7; ++step) {
    EXPECT_EQ(fs::exists(folder_.checkpoint(step)), step == 3 || step == 6 || step == 7) << step;
  }
}

TEST_F(RunFolderTest, AnEarlierRunOfTheNameIsKept) {
  ASSERT_EQ(train({}).code, 0);
  const std::string before = read_file(folder_.run() / "metrics.jsonl");
  folder_.write("runs/r/checkpoints/step_000009.tmp/manifest.json", "");  // a save that was killed
  const Result second = train({"run.steps=2"});
  ASSERT_EQ(second.code, 0) << second.error;
  EXPECT_THAT(second.error, HasSubstr("an earlier run of this name is kept in runs/r.1 (to go on with it: --resume "
                                      "runs/r.1/checkpoints/step_000008)"));
  EXPECT_EQ(read_file(folder_.run("r.1") / "metrics.jsonl"), before);
  EXPECT_TRUE(fs::exists(folder_.checkpoint(8, "r.1") / "manifest.json"));
  EXPECT_TRUE(fs::exists(folder_.run("r.1") / "logs/rank_1.log"));
  EXPECT_THAT(steps(), ElementsAre(1, 2));
  EXPECT_FALSE(fs::exists(folder_.checkpoint(8)));

  fs::rename(folder_.run("r.1"), folder_.run("r.7"));  // a gap is not filled: higher numbers are later runs
  ASSERT_EQ(train({"run.steps=1"}).code, 0);
  EXPECT_THAT(steps("r.8"), ElementsAre(1, 2));
}

// Ranks that something else started find their logs open already: rank 0 moves the rest.
TEST_F(RunFolderTest, ARankByItselfKeepsAnEarlierRunToo) {
  const std::vector<std::string> one = {"plugins.data.size=1", "plugins.expert.size=1", "run.steps=1"};
  ASSERT_EQ(train(one).code, 0);
  const Result second = folder_.orthant(with_set({"train", "c.toml"}, one), {"ORTHANT_RANK=0", "ORTHANT_WORLD_SIZE=1"});
  ASSERT_EQ(second.code, 0) << second.error;
  EXPECT_THAT(second.error, HasSubstr("an earlier run of this name is kept in runs/r.1"));
  EXPECT_TRUE(fs::exists(folder_.checkpoint(1, "r.1")));
  EXPECT_TRUE(fs::exists(folder_.checkpoint(1)));
  EXPECT_TRUE(fs::exists(folder_.run() / "logs/rank_0.log"));
}

TEST_F(RunFolderTest, NothingIsMovedThatHoldsNothing) {
  EXPECT_EQ(set_run_aside(folder_.run(), SetAside::everything), "");
  fs::create_directories(folder_.run() / "logs");
  EXPECT_EQ(set_run_aside(folder_.run(), SetAside::everything), "");
  folder_.write("runs/r/logs/rank_0.log", "x");
  EXPECT_EQ(set_run_aside(folder_.run(), SetAside::all_but_logs), "");
  EXPECT_EQ(set_run_aside(folder_.run(), SetAside::everything), folder_.run("r.1"));
  EXPECT_FALSE(fs::exists(folder_.run()));
}

TEST_F(RunFolderTest, ResumingSetsTheLinesBeyondTheCheckpointAside) {
  ASSERT_EQ(train({"run.log_every=1"}).code, 0);
  const std::vector<std::string> before = lines_of(folder_.run() / "metrics.jsonl");
  ASSERT_EQ(before.size(), 8u);
  fs::remove_all(folder_.checkpoint(8));
  folder_.write("runs/r/metrics.jsonl",
                fmt::format("{}\n{}\n{}\n{}\n{}\n{}", before[0], before[1], before[2], before[3], before[4],
                            before[5].substr(0, 30)));  // as a kill during the sixth line leaves it
  const fs::path superseded = folder_.run() / "metrics.superseded.jsonl";
  EXPECT_FALSE(fs::exists(superseded));
  const Result resumed = train({}, {"--resume", "auto"});
  ASSERT_EQ(resumed.code, 0) << resumed.error;
  EXPECT_THAT(resumed.output, HasSubstr("after step 4"));
  EXPECT_THAT(resumed.output, HasSubstr("2 lines of metrics.jsonl beyond step 4 are kept in metrics.superseded.jsonl"));
  EXPECT_THAT(lines_of(superseded), ElementsAre(before[4], before[5].substr(0, 30)));
  EXPECT_THAT(steps(), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  const std::vector<std::string> after = lines_of(folder_.run() / "metrics.jsonl");
  EXPECT_EQ(std::vector(after.begin(), after.begin() + 4), std::vector(before.begin(), before.begin() + 4));
  EXPECT_EQ(metrics()[7].at("tokens"), 8 * 64);
  EXPECT_EQ(metrics()[7].at("loss"), nlohmann::json::parse(before[7]).at("loss"));
  EXPECT_EQ(metrics()[7].at("run_id"), nlohmann::json::parse(before[7]).at("run_id"));

  // Without any checkpoint all of it makes way.
  fs::remove_all(folder_.run() / "checkpoints");
  ASSERT_EQ(train({"run.steps=1"}, {"--resume", "auto"}).code, 0);
  EXPECT_THAT(steps(), ElementsAre(1));
  EXPECT_EQ(lines_of(superseded).size(), 10u);
  EXPECT_NE(metrics()[0].at("run_id"), nlohmann::json::parse(before[0]).at("run_id"));
}

TEST_F(RunFolderTest, MetricsThatCannotBeReadAreNotTakenForNone) {
  ASSERT_EQ(train({}).code, 0);
  fs::rename(folder_.run() / "metrics.jsonl", folder_.path("kept"));
  fs::create_directory(folder_.run() / "metrics.jsonl");
  const Result resumed = train({"run.steps=9"}, {"--resume", "auto"});
  EXPECT_EQ(resumed.code, 1);
  EXPECT_THAT(resumed.error, HasSubstr("cannot read 'runs/r/metrics.jsonl'"));
}

TEST_F(RunFolderTest, AFailureBeforeTheFirstStepLeavesAnEarlierRunWhereItIs) {
  ASSERT_EQ(train({"run.name=\"other\""}).code, 0);
  ASSERT_EQ(train({}).code, 0);
  std::fstream damaged(folder_.checkpoint(8, "other") / "rank_00000.safetensors",
                       std::ios::in | std::ios::out | std::ios::binary);
  damaged.seekp(-3, std::ios::end).put('\x55');
  damaged.close();
  const std::string log = read_file(folder_.run() / "logs/rank_0.log");
  const std::string metrics_before = read_file(folder_.run() / "metrics.jsonl");
  const std::vector<std::string> from_other = {"--resume", folder_.checkpoint(8, "other").string(), "--max-restarts",
                                               "1"};
  std::vector<std::string> words = {"launch", "c.toml"};
  words.insert(words.end(), from_other.begin(), from_other.end());
  const Result failed = folder_.orthant(words);  // the ranks find out that it is damaged
  EXPECT_EQ(failed.code, 1);
  EXPECT_THAT(failed.error, HasSubstr("its checksum does not match"));
  EXPECT_THAT(failed.error, HasSubstr("it ended before its first step; an earlier run stays as it was in runs/r"));
  EXPECT_THAT(failed.error, HasSubstr("runs/r/logs.starting/rank_"));
  EXPECT_FALSE(fs::exists(folder_.run("r.1")));
  EXPECT_EQ(read_file(folder_.run() / "logs/rank_0.log"), log);
  EXPECT_EQ(read_file(folder_.run() / "metrics.jsonl"), metrics_before);
  EXPECT_THAT(read_file(folder_.run() / "logs.starting/rank_0.log"), HasSubstr("its checksum does not match"));

  // The next one does begin: each run has its own logs.
  ASSERT_EQ(train({"run.steps=2"}).code, 0);
  EXPECT_EQ(read_file(folder_.run("r.1") / "logs/rank_0.log"), log);
  EXPECT_THAT(read_file(folder_.run() / "logs/rank_0.log"), HasSubstr("done: 2 steps"));
  EXPECT_FALSE(fs::exists(folder_.run() / "logs.starting"));
  EXPECT_FALSE(fs::exists(folder_.run("r.1") / "logs.starting"));
}

TEST_F(RunFolderTest, AFileInTheWayIsSaid) {
  folder_.write("runs", "not a folder");
  const Result result = train({});
  EXPECT_EQ(result.code, 78);
  EXPECT_THAT(result.error, HasSubstr("cannot make the folder runs: Not a directory"));

  folder_.write("others/r/checkpoints", "not a folder");
  const Result inside = train({"run.directory=\"others\""}, {"--resume", "auto"});
  EXPECT_EQ(inside.code, 1);
  EXPECT_THAT(inside.error, HasSubstr("others/r/checkpoints"));
  EXPECT_THAT(inside.error, testing::Not(HasSubstr("internal error")));
}

TEST_F(RunFolderTest, AFullDiskIsSaid) {
  fs::create_directories(folder_.run());
  fs::create_symlink("/dev/full", folder_.run() / "config.resolved.toml.tmp");
  const Result result = train({}, {"--resume", "auto"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.error, HasSubstr("cannot write 'runs/r/config.resolved.toml.tmp': No space left on device"));
}

}  // namespace
}  // namespace orthant::run_test::run_folder_test
