// `orthant plan` as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::plan_command_test {
namespace {

using run_test::ProgramFolder;
using run_test::Result;
using run_test::tiny_config;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class PlanCommand : public testing::Test {
 protected:
  void SetUp() override { folder_.write("c.toml", tiny_config({.data = 4, .expert = 2})); }
  Result plan(const std::vector<std::string>& words) {
    std::vector<std::string> all = {"plan", "c.toml"};
    all.insert(all.end(), words.begin(), words.end());
    return folder_.orthant(all);
  }
  ProgramFolder folder_;
};

TEST_F(PlanCommand, ShowsMeshSlicesBytesAndCollectives) {
  const Result result = plan({});
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_THAT(result.output, AllOf(HasSubstr("c.toml: 4 ranks"), HasSubstr("0-1 | 2-3"),
                                   HasSubstr("model.layers.{0-1}.block_sparse_moe.experts.{0-1}.w1.weight"),
                                   HasSubstr("rank 0 holds"), HasSubstr("all_to_all f32"), HasSubstr("balanced")));
}

TEST_F(PlanCommand, JsonHasThePeakByKindOfEveryRouting) {
  folder_.write("m.jsonl", R"({"step":1,"expert_tokens":{"0":[9,1,1,1]}})"
                           "\n");
  const Result result = plan({"--json", "--routing", "m.jsonl"});
  ASSERT_EQ(result.code, 0) << result.error;
  const nlohmann::json memory = nlohmann::json::parse(result.output).at("memory").at(0);
  for (const char* routing : {"", "worst_", "recorded_"}) {
    std::int64_t sum = 0;
    for (const auto& [kind, bytes] : memory.at(std::string(routing) + "peak_by_kind").items()) {
      sum += bytes.get<std::int64_t>();
    }
    EXPECT_EQ(memory.at(std::string(routing) + "peak_bytes"), sum) << routing;
  }
  EXPECT_EQ(plan({"--routing", "nowhere"}).code, 78);
  EXPECT_THAT(plan({}).output,
              AllOf(HasSubstr("what the peak is made of"), HasSubstr("worst"), Not(HasSubstr("recorded"))));
}

TEST_F(PlanCommand, JsonHasTheSizeOfTheData) {
  const nlohmann::json data = nlohmann::json::parse(plan({"--json"}).output).at("data");
  const std::string text = plan({}).output;
  EXPECT_THAT(text, HasSubstr(fmt::format("data: {} sequences", data.at("sequences").get<std::int64_t>())));
  EXPECT_THAT(text, HasSubstr(fmt::format("{:.3g} epochs", data.at("epochs").get<double>())));
  const Result endless = plan({"--json", "--set", "data.source=synthetic"});
  EXPECT_FALSE(nlohmann::json::parse(endless.output).contains("data"));
}

// Experts whose channels are split send each choice's row, folded ones each token's.
TEST_F(PlanCommand, NamesAChoiceOfAPluginThatSendsFarLess) {
  folder_.write("t.toml", tiny_config({}) + "[plugins.tensor]\nsize = 2\nsequence_parallel = true\n");
  const std::vector<std::string> wide = {
      "plan",  "t.toml",          "--set", "moe.experts=8",         "--set", "moe.top_k=8",
      "--set", "moe.router=topk", "--set", "moe.capacity_factor=0", "--set", "batch.sequences=64"};
  const Result split = folder_.orthant(wide);
  ASSERT_EQ(split.code, 0) << split.error;
  EXPECT_THAT(split.output, AllOf(HasSubstr("with --set 'plugins.tensor.experts=\"fold\"'"), HasSubstr("it would send"),
                                  HasSubstr("Gradients are f32")));
  std::vector<std::string> folded = wide;
  folded.insert(folded.end(), {"--set", "plugins.tensor.experts=fold"});
  EXPECT_THAT(folder_.orthant(folded).output,
              AllOf(Not(HasSubstr("it would send")), HasSubstr("that tensor splits in norms alone are gathered")));
  EXPECT_THAT(plan({"--set", R"(optimizer.gradient_dtype="bf16")"}).output, HasSubstr("Gradients are kept in bf16"));
  EXPECT_THAT(plan({}).output, Not(HasSubstr("it would send"))) << "nothing to gain";
}

TEST_F(PlanCommand, AlikeParametersAndLongListsAreOneLine) {
  const Result result = plan({"--set", "model.layers=4", "--set", "moe.every=2", "--set", "batch.sequences=16", "--set",
                              "plugins.data.size=16"});
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_THAT(result.output, AllOf(HasSubstr("model.layers.{0, 2}.mlp.up_proj.weight"),
                                   HasSubstr("model.layers.{1, 3}.block_sparse_moe.experts.{0-1}.w1.weight"),
                                   HasSubstr("0-1 | 2-3 | 4-5 | 6-7 | .. | 14-15 (8 groups)"),
                                   HasSubstr("0, 2, .., 14"), Not(HasSubstr("layers.0."))));
}

TEST_F(PlanCommand, AsManyExpertsAsMayBe) {
  const Result result = plan({"--set", "moe.experts=65536", "--set", "moe.d_expert=1", "--set", "model.layers=1"});
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_THAT(result.output, HasSubstr("experts.{0-32767}.w1"));
}

TEST_F(PlanCommand, WhatWouldTakeForEverIsRefused) {
  Result result = plan({"--set", "batch.sequences=16777216"});
  EXPECT_EQ(result.code, 78) << result.output;
  EXPECT_THAT(result.error,
              AllOf(HasSubstr("--set:1:"), HasSubstr("this step is too large to be planned: 4194304 sequences"),
                    HasSubstr("at most 33554432 tokens")));
  result = plan({"--set", "batch.sequences=2097152", "--set", "batch.micro_batch=1", "--set", "plugins.pipeline.size=2",
                 "--set", R"(plugins.pipeline.schedule="gpipe")"});
  EXPECT_EQ(result.code, 78) << result.output;
  EXPECT_THAT(result.error, HasSubstr("524288 micro-batches through "));
}

TEST_F(PlanCommand, OfAnotherRank) {
  const Result result = plan({"--rank", "3"});
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_THAT(result.output, AllOf(HasSubstr("rank 3 holds"), HasSubstr("experts.{2-3}.w1"), HasSubstr("1, 3"),
                                   Not(HasSubstr("experts.{0-1}"))));
}

TEST_F(PlanCommand, Json) {
  const Result result = plan({"--json", "--rank", "1"});
  ASSERT_EQ(result.code, 0) << result.error;
  const auto json = nlohmann::json::parse(result.output);
  EXPECT_EQ(json.at("world_size"), 4);
  EXPECT_EQ(json.at("rank"), 1);
  EXPECT_EQ(json.at("axes").at(1).at("groups"), nlohmann::json::parse("[[0, 1], [2, 3]]"));
  EXPECT_EQ(json.at("memory").at(0).at("ranks"), nlohmann::json::parse("[0, 1, 2, 3]"));
  // Four bytes for each parameter: 256 x 16 twice, 2 layers of 5 norms' worth of attention, the router, 2 experts.
  const std::int64_t attention = 4 * 16 * 16, norms = 2 * 16, router = 4 * 16, experts = 2 * 2 * 16 * 64;
  EXPECT_EQ(json.at("memory").at(0).at("weights_bytes"),
            4 * (2 * 256 * 16 + 16 + 2 * (attention + norms + router + experts)));
  EXPECT_EQ(json.at("memory").at(0).at("optimizer_bytes"),
            2 * json.at("memory").at(0).at("weights_bytes").get<std::int64_t>());
  std::int64_t sent = 0;
  for (const auto& collective : json.at("collectives")) {
    sent += collective.at("sent_bytes").get<std::int64_t>();
  }
  EXPECT_EQ(json.at("memory").at(0).at("sent_bytes"), sent);
  EXPECT_GT(sent, 0);
}

TEST_F(PlanCommand, EveryRecipeCanBePlanned) {
  int recipes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(paths::source("configs"))) {
    if (entry.path().extension() != ".toml") {
      continue;
    }
    std::vector<std::string> words = {"plan", entry.path().string()};
    if (entry.path().filename().string().starts_with("shakespeare")) {  // for a text of one's own
      words.insert(words.end(), {"--set", "data.path=\"" + paths::source("README.md") + "\""});
    }
    const Result result = folder_.orthant(words);
    EXPECT_EQ(result.code, 0) << entry.path() << result.error;
    EXPECT_THAT(result.output, HasSubstr("bytes of each rank"));
    ++recipes;
  }
  EXPECT_GE(recipes, 4);
}

TEST_F(PlanCommand, ShowsWhatIsComputedAgain) {
  folder_.write("c.toml", tiny_config({}) + "[plugins.pipeline]\nsize = 2\n[memory]\nrecompute = \"full\"\n");
  const std::vector<std::string> words = {"--set", "memory.keep_micro_batches=1", "--set", "batch.micro_batch=1"};
  const Result text = plan(words);
  ASSERT_EQ(text.code, 0) << text.error;
  EXPECT_THAT(text.output, HasSubstr("computes again in a step: recompute = \"full\", keep_micro_batches = 1"));
  EXPECT_THAT(text.output, HasSubstr("\ndata: "));
  std::vector<std::string> as_json = words;
  as_json.emplace_back("--json");
  const nlohmann::json json = nlohmann::json::parse(plan(as_json).output);
  EXPECT_EQ(json.at("keep_micro_batches"), 1);
  const nlohmann::json first = json.at("memory").at(0).at("recomputed"),
                       last = json.at("memory").at(1).at("recomputed");
  EXPECT_EQ(first.at("micro_batches"), 4);
  EXPECT_EQ(first.at("kept"), 2);
  EXPECT_GT(first.at("flops"), 0);
  EXPECT_EQ(last.at("kept"), 4);
  EXPECT_EQ(last.at("flops"), 0);
  EXPECT_THAT(plan({"--set", "memory.recompute=none"}).output, Not(HasSubstr("computes again")));
  EXPECT_THAT(plan({"--set", "memory.keep_micro_batches=2", "--set", "batch.micro_batch=1"}).error,
              HasSubstr("no stage has more than 2 in flight at once"));
}

TEST_F(PlanCommand, NeedsNoDeviceAndStartsNothing) {
  const Result result = plan({"--set", "run.device=cuda", "--set", "run.communicator=nccl"});
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_FALSE(std::filesystem::exists(folder_.path("runs")));
}

TEST_F(PlanCommand, ARankThatDoesNotExistIsRefused) {
  const Result result = plan({"--rank", "4"});
  EXPECT_EQ(result.code, 78);
  EXPECT_THAT(result.error, AllOf(HasSubstr("no rank 4"), HasSubstr("4 ranks")));
}

TEST_F(PlanCommand, ABadLayoutIsRefused) {
  const Result result = plan({"--set", "plugins.expert.size=3"});
  EXPECT_EQ(result.code, 78);
  EXPECT_THAT(result.error, HasSubstr("expert"));
  EXPECT_EQ(result.output, "");
}

}  // namespace
}  // namespace orthant::plan_command_test
