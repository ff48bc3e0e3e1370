// `orthant plan --search` as a user runs it: what it finds trains, and absurd questions are answered.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "tests/support/program.h"

namespace orthant::search_test {
namespace {

using run_test::ProgramFolder;
using run_test::Result;
using run_test::tiny_config;
using testing::AllOf;
using testing::HasSubstr;

std::string machine(const std::string& memory_gb, const std::string& gb_s, int node = 0) {
  return "name = \"small\"\ngeneration = \"small\"\nmemory_gb = " + memory_gb +
         "\nmemory_gb_s = 10\n[peak_tflops]\nfp32 = 0.1\n[[link]]\nname = \"near\"\n" +
         (node > 0 ? "ranks = " + std::to_string(node) + "\n" : "") + "gb_s = " + gb_s + "\nlatency_us = 5\n" +
         (node > 0 ? "[[link]]\nname = \"far\"\ngb_s = 0.01\nlatency_us = 200\n" : "") +
         "[factors]\nproducts = 0.5\nmemory = 0.5\nlinks = 0.5\nnetwork = 0.5\nlaunch_us = 1\n";
}

class SearchCommand : public testing::Test {
 protected:
  void SetUp() override {
    folder_.write("c.toml", tiny_config({.data = 4, .expert = 2}));
    folder_.write("m.toml", machine("1", "5"));
  }
  Result search(const std::vector<std::string>& words, const std::string& file = "m.toml") {
    std::vector<std::string> all = {"plan", "c.toml", "--search", "--machine", file};
    all.insert(all.end(), words.begin(), words.end());
    return folder_.orthant(all);
  }
  ProgramFolder folder_;
};

TEST_F(SearchCommand, TellsTimeBytesCountsAndWhyOthersLose) {
  folder_.write("two.toml", machine("1", "5", 2));
  const Result result = search({"--top", "2", "--svg", "s.svg"}, "two.toml");
  ASSERT_EQ(result.code, 0) << result.error;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("c.toml on 4 ranks of small"), HasSubstr("layouts are legal"), HasSubstr("were timed"),
                    HasSubstr("\n2. "), HasSubstr("why not another"), HasSubstr("leaves the node"),
                    HasSubstr("2 heads do not"), HasSubstr("on the host")));
  const std::vector<std::string> picture = run_test::lines_of(folder_.path("s.svg"));
  ASSERT_FALSE(picture.empty());
  EXPECT_THAT(picture.front(), HasSubstr("<svg "));
}

TEST_F(SearchCommand, JsonAccountsForEveryLayout) {
  const Result result = search({"--json", "--ranks", "2"});
  ASSERT_EQ(result.code, 0) << result.error;
  const nlohmann::json json = nlohmann::json::parse(result.output);
  std::uint64_t sum = 0;
  for (const auto& [name, count] : json.at("counts").items()) {
    sum += name == "legal" ? 0 : count.get<std::uint64_t>();
  }
  EXPECT_EQ(json.at("counts").at("legal"), sum);
  const nlohmann::json& best = json.at("best").at(0);
  double seconds = 0, bytes = 0;
  for (const auto& [name, part] : best.at("seconds_by_part").items()) {
    seconds += part.get<double>();
  }
  for (const auto& [name, kind] : best.at("bytes_by_kind").items()) {
    bytes += kind.get<double>();
  }
  EXPECT_NEAR(best.at("seconds").get<double>(), seconds, 1e-9 * seconds);
  EXPECT_NEAR(best.at("bytes").get<double>(), bytes, 1e-9 * bytes);
  EXPECT_TRUE(json.at("what_binds").is_null());
}

TEST_F(SearchCommand, WhatItWritesIsLaunchedAndEqualToOneRank) {
  // Less memory than the fastest needs, and slow links: other axes win.
  folder_.write("slow.toml", machine("1", "0.001"));
  int number = 0;
  for (const auto& [file, ranks, memory, sets] :
       {std::tuple<std::string, std::string, std::string, std::vector<std::string>>("m.toml", "4", "1 GiB", {}),
        {"slow.toml", "4", "1 GiB", {"--set", "moe.capacity_factor=0"}},
        {"m.toml", "8", "8500 KiB", {"--set", "batch.sequences=8"}}}) {
    const std::string name = "found" + std::to_string(number++);
    std::vector<std::string> words = {"--ranks", ranks,          "--memory", memory,
                                      "--out",   name + ".toml", "--set",    "run.name=\"" + name + "\""};
    words.insert(words.end(), sets.begin(), sets.end());
    const Result found = search(words, file);
    ASSERT_EQ(found.code, 0) << found.output << found.error;
    EXPECT_THAT(found.output, testing::Not(HasSubstr("The program refuses")));
    const Result equal = folder_.orthant({"verify", name + ".toml"});
    EXPECT_EQ(equal.code, 0) << found.output << equal.output << equal.error;
    EXPECT_THAT(equal.output, HasSubstr(ranks + " ranks against one"));
    const Result trained = folder_.orthant({"launch", name + ".toml", "--set", "run.steps=2"});
    EXPECT_EQ(trained.code, 0) << trained.output << trained.error;
    EXPECT_EQ(folder_.losses(name).size(), 2U);
  }
}

// Two experts have all the work: on two ranks in order one has it all, placed by their load each has half.
TEST_F(SearchCommand, TakesTheRoutingOfARun) {
  folder_.write("r.jsonl", "{\"step\":1,\"expert_tokens\":{\"0\":[8,8,0,0],\"1\":[8,8,0,0]}}\n");
  const auto skew_of = [&](const std::string& file) {
    const Result found =
        search({"--ranks", "2", "--json", "--routing", file, "--memory", "8 MiB", "--set", "moe.capacity_factor=0"});
    EXPECT_EQ(found.code, 0) << found.error;
    std::map<std::string, nlohmann::json> answers;
    const nlohmann::json told = nlohmann::json::parse(found.output);
    for (const nlohmann::json& one : told.at("routing")) {
      answers[one.at("question")] = one;
    }
    return answers;
  };
  const auto answers = skew_of("r.jsonl");
  ASSERT_TRUE(answers.contains("as recorded") && answers.contains("capacity factor 1")) << nlohmann::json(answers);
  EXPECT_NEAR(answers.at("capacity factor 1").at("dropped").get<double>(), 0.5, 1e-12);
  const std::string other = answers.contains("expert axis of 2") ? "expert axis of 2" : "as recorded";
  EXPECT_DOUBLE_EQ(answers.at(other).at("busiest_rank").get<double>(), 2);
  EXPECT_GE(answers.at(other).at("p99_seconds").get<double>(), answers.at("balanced").at("p50_seconds").get<double>());
  EXPECT_EQ(search({"--routing", "nowhere"}).code, 78);
}

TEST_F(SearchCommand, SaysWhatBindsWhereNothingFits) {
  const Result result = search({"--memory", "1 MiB", "--out", "none.toml"});
  EXPECT_EQ(result.code, 78);
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("fits: a rank may have 1.00 MiB, and each needs"), HasSubstr("what binds")));
  EXPECT_FALSE(std::filesystem::exists(folder_.path("none.toml")));
  const Result json = search({"--memory", "1 MiB", "--json"});
  EXPECT_THAT(nlohmann::json::parse(json.output).at("what_binds").get<std::string>(), HasSubstr("what binds: "));
}

TEST_F(SearchCommand, SaysWhatDoesNotDivide) {
  const Result result = search({"--ranks", "7", "--set", "data.sequence_length=15"});
  EXPECT_EQ(result.code, 78);
  EXPECT_THAT(result.error, AllOf(HasSubstr("no layout of 7 ranks is possible"), HasSubstr("tensor 7: 2 heads do not"),
                                  HasSubstr("data 7: 4 sequences do not"), HasSubstr("pipeline 7: 7 stages")));
}

TEST_F(SearchCommand, RefusesAMachineWithoutBandwidth) {
  folder_.write("zero.toml", machine("1", "0"));
  const Result result = search({}, "zero.toml");
  EXPECT_EQ(result.code, 78);
  EXPECT_THAT(result.error, AllOf(HasSubstr("gb_s is 0"), HasSubstr("write a number above 0")));
  EXPECT_EQ(search({}, "nowhere.toml").code, 78);
  EXPECT_EQ(search({"--memory", "much"}).code, 78);
  EXPECT_EQ(folder_.orthant({"plan", "c.toml", "--search"}).code, 2);
  EXPECT_EQ(folder_.orthant({"plan", "c.toml", "--ranks", "4"}).code, 2);
  EXPECT_EQ(folder_.orthant({"plan", "c.toml", "--svg", "x.svg"}).code, 2);
}

}  // namespace
}  // namespace orthant::search_test
