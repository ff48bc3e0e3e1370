// `orthant route RUN --experts`: what it counts, against what the run itself wrote of its validations.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "tests/support/program.h"

namespace orthant::experts_test {
namespace {

using nlohmann::json;
using run_test::lines_of;
using run_test::ProgramFolder;
using run_test::Result;
using run_test::tiny_config;
using run_test::with_set;
using testing::HasSubstr;

class Experts : public testing::Test {
 protected:
  // Validated and saved at steps 3 and 6.
  json experts_of(const std::string& name, const std::vector<std::string>& values) {
    const Result trained = folder.orthant(
        with_set(with_set({"train", "c.toml"},
                          {"run.name=" + name, "run.steps=6", "run.validate_every=3", "run.checkpoint_every=3",
                           "optimizer.lr=0.02", "data.validation_path=[\"even.txt\", \"other.txt\"]"}),
                 values));
    EXPECT_EQ(trained.code, 0) << trained.error;
    const Result asked = folder.orthant({"route", "runs/" + name, "--experts", "--json", "--tokens", "300"});
    EXPECT_EQ(asked.code, 0) << asked.error;
    return json::parse(asked.output, nullptr, false);
  }
  json last_line(const std::string& name) { return json::parse(lines_of(folder.run(name) / "metrics.jsonl").back()); }

  void SetUp() override {
    folder.write("c.toml", tiny_config({}));
    std::string even, other;
    for (int i = 0; i < 30; ++i) {
      even += fmt::format("{} is even\n", 2 * i);
      other += fmt::format("ABC {} XYZ\n", 7 * i);
    }
    folder.write("even.txt", even);
    folder.write("other.txt", other);
  }
  ProgramFolder folder;
};

// A token that chose e and one other stands once in the row of e in the run's own table of pairs.
TEST_F(Experts, CountsAreThoseOfTheRunsOwnValidation) {
  const json found = experts_of("r", {"moe.router=topk", "moe.top_k=2"});
  ASSERT_EQ(found["layers"].size(), 2U);
  EXPECT_EQ(found["step"], 6);
  EXPECT_DOUBLE_EQ(found["chosen"].get<double>(), 2);
  ASSERT_EQ(found["sets"].size(), 2U);
  EXPECT_EQ(found["sets"][0]["name"], "even");
  for (const json& layer : found["layers"]) {
    const json pairs = last_line("r")["routing"][std::to_string(layer["block"].get<int>())]["coactivation"];
    std::vector<double> of_sets(2, 0);
    for (std::size_t e = 0; e < 4; ++e) {
      const json& expert = layer["experts"][e];
      std::int64_t chosen = 0, listed = 0;
      for (const json& count : pairs[e]) {
        chosen += count.get<std::int64_t>();
      }
      EXPECT_EQ(expert["choices"], chosen) << "expert " << e;
      for (const json& token : expert["frequent"]) {
        listed += token["count"].get<std::int64_t>();
        EXPECT_LE(token["share"].get<double>(), 1);
      }
      EXPECT_EQ(listed, chosen) << "every token is listed";
      for (std::size_t set = 0; set < 2; ++set) {
        of_sets[set] += expert["of_sets"][set].get<double>();
      }
    }
    for (const double sum : of_sets) {
      EXPECT_NEAR(sum, 2, 1e-9) << "of two experts a token";
    }
  }
}

// Of one expert a token, what is not kept is what the run itself calls churn.
TEST_F(Experts, SaturationIsWhatTheChurnLeaves) {
  const json found = experts_of("one", {"moe.router=switch", "moe.top_k=1", "moe.capacity_factor=0"});
  ASSERT_EQ(found["saturation"].size(), 1U);
  EXPECT_EQ(found["saturation"][0]["step"], 3);
  for (std::size_t i = 0; i < 2; ++i) {
    const std::string block = std::to_string(found["layers"][i]["block"].get<int>());
    EXPECT_NEAR(found["saturation"][0]["layers"][i].get<double>(),
                1 - last_line("one")["routing"][block]["churn"].get<double>(), 1e-9);
  }
  const Result told = folder.orthant({"route", "runs/one", "--experts"});
  EXPECT_THAT(told.output, testing::AllOf(HasSubstr("other ("), HasSubstr("saturation"), HasSubstr("\"e\"")));
  const Result page = folder.orthant({"report", "runs/one"});
  EXPECT_EQ(page.code, 0) << page.error;
}

TEST_F(Experts, RefusesARunWithoutExpertsOrCheckpoints) {
  EXPECT_THAT(folder.orthant({"route", "runs/none", "--experts"}).error, HasSubstr("is no run"));
  const std::string routed = tiny_config({});
  folder.write("d.toml", routed.substr(0, routed.find("[plugins.expert]")));
  ASSERT_EQ(folder.orthant(with_set({"train", "d.toml"}, {"run.name=dense", "run.steps=1", "moe.experts=0"})).code, 0);
  const Result dense = folder.orthant({"route", "runs/dense", "--experts"});
  EXPECT_EQ(dense.code, 78);
  EXPECT_THAT(dense.error, HasSubstr("no routed layers"));
}

}  // namespace
}  // namespace orthant::experts_test
