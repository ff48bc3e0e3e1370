// Training on pairs of answers, as a user does it: any layout, resumes, what is planned, what is told, what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/program.h"

namespace orthant::preference_run_test {
namespace {

namespace fs = std::filesystem;
using run_test::Result;
using run_test::with_set;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* base_toml = R"(
[run]
name = "base"
steps = 8
[data]
path = ["text.txt"]
sequence_length = 32
validation_sequences = 2
[batch]
sequences = 8
[model]
layers = 2
d_model = 16
heads = 4
d_ff = 16
activation = "swiglu"
init_std = 0.2
[moe]
experts = 4
top_k = 2
z_loss = 0.001
[optimizer]
lr = 0.02
eps = 1e-5
schedule = "constant"
)";

constexpr const char* pairs_toml = R"(
extends = ["base.toml"]
[run]
name = "p"
steps = 4
log_every = 1
validate_every = 2
[train]
from = "runs/base"
[data]
source = "pairs"
path = ["pairs.jsonl"]
chat_template = "short.toml"
sequence_length = 16
validation_fraction = 0.25
validation_sequences = 3
[batch]
sequences = 8
micro_batch = 2
[preference]
beta = 0.2
nll_weight = 0.1
[optimizer]
lr = 0.005
eps = 1e-5
)";

constexpr const char* short_toml = R"(
[user]
before = "?"
after = "="
[assistant]
end = "."
)";

// A digit is preferred to a letter. A pair has up to 15 tokens: every cut of its sequence of 16 goes through one.
std::string pairs(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    const std::string prompt(1 + static_cast<std::size_t>(i % 3), static_cast<char>('a' + i % 7));
    lines +=
        nlohmann::json{{"prompt", prompt},
                       {"chosen", std::to_string(10 + 7 * i % 90)},
                       {"rejected", std::string(2 + static_cast<std::size_t>(i % 2), static_cast<char>('k' + i % 5))}}
            .dump() +
        "\n";
  }
  return lines;
}

class Preference : public testing::Test {
 protected:
  void SetUp() override {
    std::string text;
    for (int i = 0; i < 40; ++i) {
      text += "Of two answers one is better: 0123456789, abcdefghijk. ";
    }
    folder_.write("text.txt", text);
    folder_.write("pairs.jsonl", pairs(32));
    folder_.write("short.toml", short_toml);
    folder_.write("base.toml", base_toml);
    folder_.write("p.toml", pairs_toml);
    const Result base = folder_.orthant({"train", "base.toml"});
    ASSERT_EQ(base.code, 0) << base.error;
  }
  Result run(const std::vector<std::string>& values, const std::vector<std::string>& words = {"launch", "p.toml"}) {
    const Result result = folder_.orthant(with_set(words, values));
    EXPECT_EQ(result.code, 0) << result.error << result.output;
    return result;
  }
  void expect_equal(const std::vector<std::string>& values) {
    const Result verified = folder_.orthant(with_set({"verify", "p.toml"}, values));
    EXPECT_EQ(verified.code, 0) << testing::PrintToString(values) << "\n" << verified.output << verified.error;
    EXPECT_THAT(verified.output, AllOf(HasSubstr("pairs"), HasSubstr("\nequal")));
  }
  std::vector<nlohmann::json> metrics(const std::string& run) const {
    std::vector<nlohmann::json> lines;
    for (const std::string& line : run_test::lines_of(folder_.run(run) / "metrics.jsonl")) {
      lines.push_back(nlohmann::json::parse(line));
    }
    return lines;
  }
  std::string refusal(const std::vector<std::string>& values) const {
    const Result result = folder_.orthant(with_set({"launch", "p.toml"}, values));
    EXPECT_EQ(result.code, 78) << result.output;
    EXPECT_THAT(result.output, Not(HasSubstr("step 1/")));
    return result.error;
  }

  run_test::ProgramFolder folder_;
};

const std::vector<std::vector<std::string>> layouts = {
    {"plugins.data.size=2", "plugins.data.zero=3", "plugins.expert.size=2"},
    {"plugins.tensor.size=4", "plugins.tensor.sequence_parallel=true"},
    {"plugins.sequence.size=2"},
    {"plugins.sequence.size=4", "plugins.sequence.method=\"ring\""},
    {"plugins.pipeline.size=2", "plugins.pipeline.schedule=\"interleaved\"", "plugins.pipeline.chunks=2"},
    {"plugins.data.size=2", "plugins.expert.size=2", "plugins.tensor.size=2", "plugins.pipeline.size=2"},
    {"plugins.sequence.size=2", "plugins.pipeline.size=2", "plugins.data.size=2", "plugins.data.zero=1"},
    {"plugins.data.size=2", "plugins.offload.weights=\"host\"", "plugins.offload.states=\"host\""}};

TEST_F(Preference, EveryLayoutEqualsOneRank) {
  for (const std::vector<std::string>& layout : layouts) {
    expect_equal(layout);
  }
}

TEST_F(Preference, EveryWayToTrainEqualsOneRank) {
  const std::vector<std::string> adapters = {"lora.rank=3", "lora.targets=[\"*\"]"}, ipo = {"preference.loss=\"ipo\""},
                                 half = {"run.dtype=\"bf16\"", "preference.label_smoothing=0.1"},
                                 early = {"optimizer.in_backward=true", "optimizer.clip_grad_norm=0"},
                                 again = {"memory.recompute=\"full\""};
  const std::vector<std::string> sharded = {"plugins.data.size=2", "plugins.data.zero=3"},
                                 ring = {"plugins.sequence.size=2", "plugins.sequence.method=\"ring\""},
                                 wide = {"plugins.pipeline.size=2", "plugins.tensor.size=2"};
  for (const auto& [way, layout] : {std::pair(adapters, wide), std::pair(adapters, ring), std::pair(ipo, ring),
                                    std::pair(half, sharded), std::pair(early, sharded), std::pair(again, ring)}) {
    auto values = way;
    values.insert(values.end(), layout.begin(), layout.end());
    expect_equal(values);
  }
}

// The first step compares the model with itself; then it learns what is preferred, also in pairs that it has not seen.
TEST_F(Preference, LearnsWhatIsPreferred) {
  run({"run.steps=30", "batch.micro_batch=0", "preference.nll_weight=0", "run.validate_every=10"});
  const std::vector<nlohmann::json> lines = metrics("p");
  EXPECT_NEAR(lines.front()["loss"].get<double>(), std::log(2.0), 1e-6);
  for (const char* key : {"rewards/chosen", "rewards/rejected", "rewards/margins"}) {
    EXPECT_NEAR(lines.front()[key].get<double>(), 0, 1e-5) << key;
  }
  const nlohmann::json& last = lines.back();
  EXPECT_LT(last["loss"].get<double>(), 0.4);
  EXPECT_EQ(last["rewards/accuracies"].get<double>(), 1);
  EXPECT_GT(last["rewards/margins"].get<double>(), 1);
  EXPECT_EQ(last["validation_rewards/accuracies"].get<double>(), 1);
  EXPECT_LT(last["validation_loss"].get<double>(), 0.5);
  EXPECT_NEAR(last["rewards/margins"].get<double>(),
              last["rewards/chosen"].get<double>() - last["rewards/rejected"].get<double>(), 1e-9);
}

TEST_F(Preference, ValidationDoesNotDependOnTheLayout) {
  run({"run.name=\"one\"", "optimizer.lr=1e-3"});
  const nlohmann::json one = metrics("one").back();
  int number = 0;
  for (const std::vector<std::string>& layout : layouts) {
    const std::string name = "l" + std::to_string(number++);
    auto values = layout;
    values.insert(values.end(), {"run.name=\"" + name + "\"", "optimizer.lr=1e-3"});
    run(values);
    const nlohmann::json there = metrics(name).back();
    for (const char* key : {"validation_loss", "validation_rewards/margins", "validation_rewards/accuracies",
                            "validation_logps/chosen", "rewards/chosen", "nll_loss"}) {
      EXPECT_NEAR(there[key].get<double>(), one[key].get<double>(), 1e-4) << key << " " << layout.front();
    }
  }
}

// Two halves, in any layout, and what a checkpoint of another one leads to.
TEST_F(Preference, AResumedRunIsTheUninterruptedOneBitForBit) {
  const std::vector<std::string> four = {"plugins.sequence.size=2", "plugins.pipeline.size=2"};
  auto values = four;
  values.emplace_back("run.name=\"whole\"");
  run(values);
  values = four;
  values.emplace_back("run.steps=2");
  run(values);
  const Result resumed = run(four, {"launch", "p.toml", "--resume", "auto"});
  EXPECT_THAT(resumed.output, AllOf(HasSubstr("resumed from"), HasSubstr("is compared with")));
  EXPECT_THAT(run_test::differences(folder_.checkpoint(4, "p"), folder_.checkpoint(4, "whole")), testing::IsEmpty());
}

// A model that was trained with tokens further ahead, and back.
TEST_F(Preference, DepthsOfMultiTokenPredictionAreLeftOutAndBeginAnewAndARunSaysSo) {
  const Result ahead =
      run({"model.mtp_depth=1", "train.from=\"runs/base\"", "run.name=\"ahead\""}, {"train", "base.toml"});
  EXPECT_THAT(ahead.output, HasSubstr("mtp_depth is 0 there and 1 here: what is not there begins anew"));
  const Result preferred = run({"train.from=\"runs/ahead\"", "plugins.pipeline.size=2"});
  EXPECT_THAT(preferred.output, HasSubstr("mtp_depth is 1 there and 0 here: what is not here is left out"));
  EXPECT_NEAR(metrics("p").front().at("rewards/margins").get<double>(), 0, 1e-6);
  EXPECT_THAT(run({"run.name=\"alike\""}).output, testing::Not(HasSubstr("mtp_depth")));
}

TEST_F(Preference, AResumeWithAnotherReferenceIsRefused) {
  run({"run.steps=2"});
  ASSERT_EQ(folder_.orthant(with_set({"train", "base.toml", "--resume", "auto"}, {"run.steps=10"})).code, 0);
  const Result result = folder_.orthant({"train", "p.toml", "--resume", "auto"});
  EXPECT_EQ(result.code, 78) << result.output;
  EXPECT_THAT(result.error, AllOf(HasSubstr("step_000010' is step 10 of run"), HasSubstr("has learned from step 8"),
                                  HasSubstr("write preference.reference = the folder of that checkpoint")));
  const std::string before = folder_.checkpoint(8, "base").string();
  run({"preference.reference=\"" + before + "\""}, {"train", "p.toml", "--resume", "auto"});
}

TEST_F(Preference, WhatARunNeedsIsWhatWasPlanned) {
  for (const std::vector<std::string>& layout : std::vector<std::vector<std::string>>{
           {"batch.micro_batch=0"}, {"plugins.pipeline.size=2"}, {"plugins.sequence.size=2"}}) {
    const Result planned = folder_.orthant(with_set({"plan", "p.toml", "--json"}, layout));
    ASSERT_EQ(planned.code, 0) << planned.error;
    std::int64_t most = 0, usual = 0;
    const nlohmann::json told = nlohmann::json::parse(planned.output);
    for (const nlohmann::json& of : told["memory"]) {
      EXPECT_GT(of["teacher_bytes"].get<std::int64_t>(), 0);
      most = std::max(most, of["worst_peak_bytes"].get<std::int64_t>());
      usual = std::max(usual, of["peak_bytes"].get<std::int64_t>());
    }
    run(layout);
    const std::int64_t needed = metrics("p").back()["peak_bytes"];
    EXPECT_LE(needed, most) << layout.front();
    EXPECT_GT(needed, usual * 8 / 10) << layout.front();
  }
}

TEST_F(Preference, TheResultIsAModelAsAnyOther) {
  run({"lora.rank=2", "lora.targets=[\"*.q_proj.weight\"]"});
  const Result generated =
      folder_.orthant({"generate", "runs/p", "--prompt", "?a=", "--max-tokens", "4", "--temperature", "0", "--verify"});
  EXPECT_EQ(generated.code, 0) << generated.error;
  EXPECT_EQ(folder_.orthant({"eval", "runs/p", "text.txt"}).code, 0);
  EXPECT_EQ(folder_.orthant({"export", "runs/p", "-o", "out"}).code, 0);
  const Result report = folder_.orthant({"report", "runs/p"});
  EXPECT_EQ(report.code, 0) << report.error;
  // And a model to go on from, with pairs or without.
  run({"train.from=\"runs/p\"", "run.name=\"again\"", "lora.rank=2", "lora.targets=[\"*.q_proj.weight\"]"});
  EXPECT_NEAR(metrics("again").front()["rewards/margins"].get<double>(), 0, 1e-5);
}

TEST_F(Preference, WhatCannotBeRightIsRefusedBeforeRanksStart) {
  EXPECT_THAT(refusal({"train.from=\"\""}), HasSubstr("there is no model to compare with"));
  EXPECT_THAT(refusal({"preference.reference=\"nowhere\""}),
              AllOf(HasSubstr("[preference] reference"), HasSubstr("config.resolved.toml' is missing")));
  EXPECT_THAT(refusal({"preference.beta=0"}), HasSubstr("[preference] beta: 0 is not above 0"));
  EXPECT_THAT(refusal({"preference.label_smoothing=0.5"}), HasSubstr("neither answer is preferred"));
  EXPECT_THAT(refusal({"preference.label_smoothing=0.1", "preference.loss=\"ipo\""}), HasSubstr("\"ipo\" knows none"));
  EXPECT_THAT(refusal({"preference.loss=\"hinge\""}), HasSubstr("sigmoid"));
  EXPECT_THAT(refusal({"model.dropout=0.1"}), HasSubstr("[model] dropout"));
  EXPECT_THAT(refusal({"moe.jitter=0.1"}), HasSubstr("[moe] jitter"));
  EXPECT_THAT(refusal({"run.graphs=true"}), HasSubstr("[run] graphs"));
  EXPECT_THAT(refusal({"model.mtp_depth=1", "plugins.pipeline.size=3"}),
              AllOf(HasSubstr("[model] mtp_depth"), testing::Not(HasSubstr("[distil]"))));
  EXPECT_THAT(refusal({"distil.teacher=\"runs/base\""}), HasSubstr("[distil] teacher"));
  EXPECT_THAT(refusal({"data.documents=\"separate\""}), HasSubstr("[data] documents"));
  EXPECT_THAT(refusal({"data.source=\"chat\""}), HasSubstr("has none"));
  EXPECT_THAT(refusal({"moe.capacity_factor=1.0", "moe.group_tokens=32"}), HasSubstr("depend on other pairs"));
  EXPECT_THAT(refusal({"data.sequence_length=8"}),
              AllOf(HasSubstr("no token of the"), HasSubstr("pairs.jsonl', line 3")));
  EXPECT_THAT(refusal({"data.too_long=\"refuse\"", "data.sequence_length=12"}),
              HasSubstr("the pair takes 13 positions"));
  folder_.write("pairs.jsonl", pairs(3) + "{\"prompt\": \"a\", \"chosen\": \"b\"}\n");
  EXPECT_THAT(refusal({}), AllOf(HasSubstr("line 4"), HasSubstr("\"rejected\"")));
}

}  // namespace
}  // namespace orthant::preference_run_test
