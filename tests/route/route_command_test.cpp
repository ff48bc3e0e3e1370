// `orthant route` as a program: what it answers from a run's folder, against runs of those settings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/program.h"

namespace orthant::route_command_test {
namespace {

using nlohmann::json;
using run_test::lines_of;
using run_test::ProgramFolder;
using run_test::Result;
using run_test::tiny_config;
using run_test::with_set;
using testing::HasSubstr;

// A run of three steps whose first is recorded.
class RouteCommand : public testing::Test {
 protected:
  void train(const std::string& name, std::vector<std::string> values) {
    values.insert(values.end(), {"run.name=\"" + name + "\"", "run.steps=3", "model.dropout=0", "moe.jitter=0"});
    const Result result = folder.orthant(with_set({"train", "c.toml"}, values));
    ASSERT_EQ(result.code, 0) << result.error;
  }

  json ask(const std::vector<std::string>& words, const std::string& run = "runs/r") {
    std::vector<std::string> all = {"route", run, "--json", "--no-time", "--step", "1"};
    all.insert(all.end(), words.begin(), words.end());
    const Result result = folder.orthant(all);
    EXPECT_EQ(result.code, 0) << result.error;
    const json answer = json::parse(result.output, nullptr, false);
    EXPECT_TRUE(answer.is_object()) << result.output;
    return answer;
  }

  // What the run wrote of its first step.
  json first_line(const std::string& name) { return json::parse(lines_of(folder.run(name) / "metrics.jsonl").front()); }

  void SetUp() override {
    folder.write("c.toml", tiny_config({}));
    train("r", {"run.record_routing=1"});
  }

  ProgramFolder folder;
};

void expect_the_run(const json& answer, const json& line, const std::string& what) {
  EXPECT_EQ(answer["layers"]["0"]["expert_tokens"], line["expert_tokens"]["0"]) << what;
}

TEST_F(RouteCommand, AnswersWhatARunOfThoseSettingsCounts) {
  const json answers = ask({"--capacity-factor", "0.5,0", "--router", "gshard,switch"})["answers"];
  ASSERT_EQ(answers.size(), 5U);
  EXPECT_EQ(answers[0]["settings"], "as it was");
  expect_the_run(answers[0], first_line("r"), "as it was");
  train("half", {"moe.capacity_factor=0.5"});
  expect_the_run(answers[1], first_line("half"), "gshard, capacity 0.5");
  train("all", {"moe.capacity_factor=0"});
  expect_the_run(answers[2], first_line("all"), "gshard, dropless");
  train("switch", {"moe.capacity_factor=0.5", "moe.router=\"switch\"", "moe.top_k=1"});
  expect_the_run(answers[3], first_line("switch"), "switch, capacity 0.5");
  EXPECT_GT(answers[1]["dropped_by_capacity"], 0);
  EXPECT_EQ(answers[2]["dropped_by_capacity"], 0);
}

TEST_F(RouteCommand, CountsWhatIsComputedTwice) {
  // Two micro-batches of two ranks, in order: with one kept, the other's forward pass comes twice.
  const auto bytes = [&](const std::string& recompute) {
    const json answers = ask({"--ranks", "2", "--set", "batch.micro_batch=1", "--set", recompute})["answers"];
    return answers.back()["bytes_inside_nodes"].get<std::int64_t>();
  };
  const std::int64_t none = bytes("memory.recompute=\"none\""), full = bytes("memory.recompute=\"full\"");
  EXPECT_GT(full, none);
  const json kept = ask({"--ranks", "2", "--set", "batch.micro_batch=1", "--set", "memory.recompute=\"full\"", "--set",
                         "memory.keep_micro_batches=1"})["answers"];
  const std::int64_t some = kept.back()["bytes_inside_nodes"].get<std::int64_t>();
  EXPECT_EQ(some, none) << "one after another, each is the only one that is kept";
}

// The exchange is that of the row's own plugins: nobody has to say how it goes.
TEST_F(RouteCommand, FollowsTheExchangeOfTheConfiguration) {
  const std::vector<std::string> ranks = {"--set", "plugins.data.size=4",    "--set", "plugins.expert.size=4",
                                          "--set", "moe.capacity_factor=1.0"};
  const auto row = [&](std::vector<std::string> more) {
    more.insert(more.begin(), ranks.begin(), ranks.end());
    return ask(more)["answers"].back();
  };
  const auto bytes = [](const json& answer, const char* where) { return answer[where].get<std::int64_t>(); };
  const json one = row({}),
             two = row({"--set", "plugins.expert.dispatch=\"hierarchical\"", "--set", "plugins.expert.node_ranks=2",
                        "--node-ranks", "2"}),
             padded = row({"--set", "plugins.expert.padded=true"});
  EXPECT_EQ(bytes(one, "bytes_between_nodes"), 0);
  EXPECT_GT(bytes(two, "bytes_between_nodes"), 0);
  EXPECT_GT(bytes(two, "bytes_inside_nodes") + bytes(two, "bytes_between_nodes"), bytes(one, "bytes_inside_nodes"));
  EXPECT_GT(bytes(padded, "bytes_inside_nodes"), bytes(one, "bytes_inside_nodes"));
  EXPECT_EQ(padded["rank_load_max_over_mean"], 1.0);
  EXPECT_EQ(padded["dropped_by_capacity"], one["dropped_by_capacity"]);
}

TEST_F(RouteCommand, AnswersARunThatFoundItsRecomputation) {
  train("fit", {"run.record_routing=1", "memory.recompute=\"fit\"", "memory.limit=\"1 GiB\""});
  const json answers = ask({"--ranks", "1,2"}, "runs/fit")["answers"];
  ASSERT_EQ(answers.size(), 3U);
  for (const json& answer : answers) {
    EXPECT_FALSE(answer.contains("refused")) << answer.dump();
  }
}

// As `report` and `bench compare` refuse it: by file and line.
TEST_F(RouteCommand, ADamagedLineOfMetricsIsRefused) {
  const std::string metrics = "runs/r/metrics.jsonl", whole = launch_test::read_file(folder.path(metrics));
  for (const char* line : {R"({"step":"x","step_seconds":1})", R"({"step":4,"step_seconds":"x"})", "[]", "{"}) {
    folder.write(metrics, whole + line + "\n");
    const Result refused = folder.orthant({"route", "runs/r", "--no-time"});
    EXPECT_EQ(refused.code, 78) << line << refused.error;
    EXPECT_THAT(refused.error, HasSubstr(fmt::format("metrics.jsonl:{}: ", lines_of(folder.path(metrics)).size())))
        << line;
  }
  folder.write(metrics, whole + "{\"step\": 4, \"ste");
  EXPECT_EQ(folder.orthant({"route", "runs/r", "--no-time"}).code, 0) << "a line that is cut short by a kill";
}

TEST_F(RouteCommand, SaysWhyARowHasNoAnswer) {
  const json answers = ask({"--ranks", "2,3", "--levels", "1,2"})["answers"];
  ASSERT_EQ(answers.size(), 5U);
  EXPECT_FALSE(answers[1].contains("refused"));
  EXPECT_THAT(answers[2]["refused"].get<std::string>(), HasSubstr("give --node-ranks N"));
  EXPECT_THAT(answers[3]["refused"].get<std::string>(), HasSubstr("4 sequences do not divide among 3 ranks"));
  EXPECT_FALSE(answers[0].contains("refused"));
  // Nothing of what was asked has an answer.
  const Result none = folder.orthant({"route", "runs/r", "--no-time", "--ranks", "3"});
  EXPECT_EQ(none.code, 78);
  EXPECT_THAT(none.output, HasSubstr("do not divide among 3 ranks"));
}

// The first recording is that of routers which have learnt nothing.
TEST_F(RouteCommand, AnswersForTheLastRecordingAndSaysWhich) {
  const Result last = folder.orthant({"route", "runs/r", "--no-time", "--json"});
  EXPECT_EQ(json::parse(last.output)["step"], 3);
  EXPECT_THAT(folder.orthant({"route", "runs/r", "--no-time"}).output, HasSubstr("step 3 of those recorded (1, 3)"));
  EXPECT_THAT(folder.orthant({"route", "runs/r", "--no-time", "--step", "1"}).output, HasSubstr("learnt nothing yet"));
}

TEST_F(RouteCommand, RefusesWhatIsNoRecordedRun) {
  const auto refusal = [&](const std::vector<std::string>& words) {
    const Result result = folder.orthant(words);
    EXPECT_EQ(result.code, 78) << result.output;
    return result.error;
  };
  EXPECT_THAT(refusal({"route", "runs/none"}), HasSubstr("'runs/none' is no run"));
  EXPECT_THAT(refusal({"route", "runs/r", "--step", "2"}),
              HasSubstr("--step 2: it was not recorded; recorded are 1, 3"));
  EXPECT_THAT(refusal({"route", "runs/r", "--experts-per-rank", "3"}), HasSubstr("does not divide 4 experts"));
}

TEST_F(RouteCommand, RefusesWhatARecordingCannotAnswer) {
  for (const std::string set :
       {"model.layers=4", "batch.sequences=8", "data.sequence_length=64", "moe.every=2", "moe.experts=8",
        "moe.shared_experts=1", "moe.jitter=0.1", "run.seed=3", "optimizer.lr=1", "moe={every=2}", "run.steps=2"}) {
    const Result result = folder.orthant({"route", "runs/r", "--no-time", "--set", set});
    EXPECT_EQ(result.code, 78) << set << result.output;
    EXPECT_THAT(result.error, HasSubstr("--set " + set)) << set;
  }
  EXPECT_FALSE(ask({"--set", "moe.top_k=2", "--set", "run.threads=1"})["answers"].back().contains("refused"));
  for (const char* option : {"--rate-inside", "--rate-between"}) {
    for (const char* rate : {"0", "-5", "nan", "inf", "1e-300"}) {
      const Result result = folder.orthant({"route", "runs/r", "--no-time", fmt::format("{}={}", option, rate)});
      EXPECT_EQ(result.code, 78) << option << rate << result.output;
      EXPECT_THAT(result.error, HasSubstr("finite number of bytes a second")) << option << rate;
    }
  }
}

TEST_F(RouteCommand, SaysThatADenseModelHasNoRoutedLayers) {
  const std::string text = tiny_config({});
  folder.write("dense.toml", text.substr(0, text.find("[plugins.")));
  const Result trained = folder.orthant(with_set(
      {"train", "dense.toml"}, {"run.name=\"dense\"", "run.steps=1", "run.record_routing=1", "moe.experts=0"}));
  ASSERT_EQ(trained.code, 0) << trained.error;
  const Result result = folder.orthant({"route", "runs/dense"});
  EXPECT_EQ(result.code, 78) << result.output;
  EXPECT_THAT(result.error, HasSubstr("no routed layers"));
}

// Of a machine on which products are all that takes time: a row whose busiest rank has more takes longer.
TEST_F(RouteCommand, PredictsStepsOnAMachine) {
  folder.write("m.toml",
               "name = \"m\"\ngeneration = \"m\"\nmemory_gb = 1\nmemory_gb_s = 1e6\n[peak_tflops]\nfp32 = 1e-4\n"
               "[[link]]\ngb_s = 1e6\nlatency_us = 1e-6\n"
               "[factors]\nproducts = 1\nmemory = 1\nlinks = 1\nnetwork = 1\nlaunch_us = 1e-6\n");
  folder.write("mixed.txt", "0 2\n1 3\n");
  const json answers = ask({"--machine", "m.toml", "--ranks", "2", "--placement", "mixed.txt"})["answers"];
  const json in_order = ask({"--machine", "m.toml", "--ranks", "2"})["answers"].back();
  const json& mixed = answers.back();
  EXPECT_FALSE(mixed.contains("step_seconds"));
  for (const json* one : {&in_order, &mixed}) {
    EXPECT_LE((*one)["machine"]["p50_seconds"], (*one)["machine"]["p99_seconds"]);
  }
  EXPECT_NE(mixed["machine"]["p50_seconds"], in_order["machine"]["p50_seconds"]);
  EXPECT_EQ(folder.orthant({"route", "runs/r", "--machine", "nowhere.toml"}).code, 78);
}

TEST_F(RouteCommand, PrintsATable) {
  const Result result = folder.orthant({"route", "runs/r", "--capacity-factor", "0", "--ranks", "2"});
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_THAT(result.output, HasSubstr("as it was"));
  EXPECT_THAT(result.output, HasSubstr("capacity 0, 2 ranks"));
  EXPECT_THAT(result.output, HasSubstr("bytes inside"));
}

}  // namespace
}  // namespace orthant::route_command_test
