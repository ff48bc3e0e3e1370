// Where a step's time beyond its floor goes: planted causes are found, and all parts add up.
#include "bench/command/causes.h"

#include <gtest/gtest.h>

#include "tests/support/program.h"
#include "tests/trace/spans.h"

namespace orthant::trace_test::causes_test {
namespace {

constexpr std::int64_t ms = 1'000'000;
// A flop and a byte take a nanosecond each.
constexpr double giga = 1e9;

const Span whole = span("step", SpanKind::step, 0, 100 * ms, {.step = 1});

double seconds_of(const StepCauses& causes, const std::string& name) {
  for (const Cause& cause : causes.causes) {
    if (cause.name == name) {
      return cause.seconds;
    }
  }
  return 0;
}

StepCauses checked(std::vector<RankTrace> ranks, double model_flops) {
  StepCauses causes = step_causes(join(std::move(ranks)),
                                  {.flops_per_second = giga, .bytes_per_second = giga, .model_flops = model_flops});
  double sum = causes.floor_seconds;
  for (const Cause& cause : causes.causes) {
    sum += cause.seconds;
  }
  EXPECT_NEAR(sum, causes.step_seconds, 1e-12);
  EXPECT_NEAR(causes.step_seconds, 0.1, 1e-12);
  return causes;
}

Span product(const char* name, std::int64_t begin, std::int64_t end, std::int64_t flops, std::int64_t rows = 1) {
  return span(name, SpanKind::compute, begin * ms, end * ms, {.rows = rows, .flops = flops * ms});
}

Span routed(std::int64_t rows, std::int64_t useful) {
  return span("dispatch_plan", SpanKind::compute, 90 * ms, 91 * ms, {.rows = rows, .useful = useful});
}

TEST(Causes, AStepOfLargeProductsAloneIsAtItsFloor) {
  const StepCauses causes = checked({rank_trace(0, {whole, product("gemm", 0, 100, 100)})}, 100e6);
  EXPECT_NEAR(causes.floor_seconds, 0.1, 1e-12);
  for (const Cause& cause : causes.causes) {
    EXPECT_NEAR(cause.seconds, 0, 1e-12) << cause.name;
  }
}

TEST(Causes, EachOperationIsInItsClass) {
  const StepCauses causes =
      checked({rank_trace(0, {whole, product("gemm", 0, 20, 15), product("grouped_gemm", 20, 50, 10),
                              product("attention", 50, 60, 4), product("norm", 60, 65, 0), product("adamw", 65, 72, 0),
                              product("pack", 72, 75, 0), span("batch", SpanKind::phase, 75 * ms, 77 * ms),
                              span("upload", SpanKind::transfer, 78 * ms, 79 * ms), routed(64, 64)})},
              29e6);
  EXPECT_NEAR(causes.floor_seconds, 0.029, 1e-12);
  EXPECT_NEAR(seconds_of(causes, "small dense products"), 0.005, 1e-12);
  EXPECT_NEAR(seconds_of(causes, "small products of experts"), 0.020, 1e-12);
  EXPECT_NEAR(seconds_of(causes, "attention below the rate of a product"), 0.006, 1e-12);
  EXPECT_NEAR(seconds_of(causes, "memory-bound operations"), 0.005, 1e-12);
  EXPECT_NEAR(seconds_of(causes, "optimizer"), 0.007, 1e-12);
  EXPECT_NEAR(seconds_of(causes, "routing and permutation"), 0.004, 1e-12);
  EXPECT_NEAR(seconds_of(causes, "loading of batches"), 0.002, 1e-12);
  EXPECT_NEAR(seconds_of(causes, "transfers between host and device"), 0.001, 1e-12);
  EXPECT_NEAR(seconds_of(causes, "launches and overheads outside operations"), 0.021, 1e-12);
  EXPECT_EQ(seconds_of(causes, "padding"), 0);
}

// Capacity factor 4: blocks of a constant size of which a quarter is used.
TEST(Causes, RowsThatHoldNoTokenArePadding) {
  const StepCauses causes =
      checked({rank_trace(0, {whole, product("grouped_gemm", 0, 80, 80), routed(4000, 1000)})}, 20e6);
  EXPECT_NEAR(seconds_of(causes, "padding"), 0.060, 1e-12);
  EXPECT_EQ(seconds_of(causes, "small products of experts"), 0);
  EXPECT_NEAR(seconds_of(causes, "products that are made again"), 0, 1e-12);
}

TEST(Causes, WhatIsMadeAgainOrSparedIsTold) {
  EXPECT_NEAR(
      seconds_of(checked({rank_trace(0, {whole, product("gemm", 0, 40, 40)})}, 30e6), "products that are made again"),
      0.010, 1e-12);
  EXPECT_NEAR(seconds_of(checked({rank_trace(0, {whole, product("gemm", 0, 40, 40)})}, 45e6),
                         "products that are spared: choices dropped"),
              -0.005, 1e-12);
}

// A skewed router: rank 1 has three times the rows of rank 0, which waits for it. Then it is slow for another reason.
TEST(Causes, AWaitForBusyExpertsIsImbalance) {
  const auto ranks = [](std::int64_t rows) {
    const auto exchange = [](std::int64_t begin) { return call("all_to_all e", 0, begin * ms, 80 * ms); };
    return std::vector<RankTrace>{rank_trace(0, {whole, product("grouped_gemm", 0, 20, 20, 100), exchange(20)}),
                                  rank_trace(1, {whole, product("grouped_gemm", 0, 60, 60, rows), exchange(60)})};
  };
  const StepCauses skewed = checked(ranks(300), 40e6);
  EXPECT_NEAR(seconds_of(skewed, "imbalance of experts"), 0.020, 1e-12);
  EXPECT_EQ(seconds_of(skewed, "ranks that wait for each other"), 0);
  EXPECT_NEAR(seconds_of(skewed, "exposed exchange"), 0.020, 1e-12);
  const StepCauses even = checked(ranks(100), 40e6);
  EXPECT_EQ(seconds_of(even, "imbalance of experts"), 0);
  EXPECT_NEAR(seconds_of(even, "ranks that wait for each other"), 0.020, 1e-12);
}

nlohmann::json why(const run_test::ProgramFolder& folder, const std::vector<std::string>& values) {
  const run_test::Result result =
      folder.orthant(run_test::with_set({"bench", "step", "r.toml", "--why", "--json", "--steps", "2"}, values));
  EXPECT_EQ(result.code, 0) << result.error;
  nlohmann::json json = nlohmann::json::parse(result.output);
  double sum = json.at("floor_seconds");
  for (const nlohmann::json& cause : json.at("causes")) {
    sum += cause.at("seconds").get<double>();
  }
  EXPECT_NEAR(sum, json.at("step_seconds").get<double>(), 1e-9);
  return json;
}

// Both are printed, of the same command: the profile first.
TEST(Causes, StandBesideTheProfile) {
  run_test::ProgramFolder folder;
  folder.write("r.toml", run_test::tiny_config({}));
  const run_test::Result both = folder.orthant({"bench", "step", "r.toml", "--profile", "--why", "--steps", "2"});
  ASSERT_EQ(both.code, 0) << both.error;
  const std::size_t profile = both.output.find("grouped_gemm"), why = both.output.find("floor: the model's products");
  EXPECT_NE(profile, std::string::npos) << both.output;
  EXPECT_NE(why, std::string::npos) << both.output;
  EXPECT_LT(profile, why);
}

double share_of(const nlohmann::json& json, const std::string& name) {
  for (const nlohmann::json& cause : json.at("causes")) {
    if (cause.at("name") == name) {
      return cause.at("share");
    }
  }
  return 0;
}

// What the products of one rank do is, to the last of them, what the model's formula says.
TEST(Causes, TheModelsFlopsAreThoseOfItsProducts) {
  run_test::ProgramFolder folder;
  folder.write("r.toml", run_test::tiny_config({}));
  const std::string all = "moe.router=\"topk\"";  // gshard leaves second choices to chance
  const nlohmann::json json = why(folder, {all, "moe.capacity_factor=0"});
  EXPECT_NEAR(share_of(json, "products that are made again"), 0, 1e-9);
  EXPECT_NEAR(share_of(json, "products that are spared: choices dropped"), 0, 1e-9);
  EXPECT_LT(share_of(why(folder, {all, "moe.capacity_factor=0.25"}), "products that are spared: choices dropped"), 0);
  EXPECT_GT(share_of(why(folder, {all, "moe.capacity_factor=0", "memory.recompute=\"full\""}),
                     "products that are made again"),
            0);
}

TEST(Causes, TinyExpertsAndPaddedBlocksAreSeenInARealStep) {
  run_test::ProgramFolder folder;
  folder.write("r.toml", run_test::tiny_config({}));
  EXPECT_GT(share_of(why(folder, {"moe.experts=64", "moe.d_expert=8"}), "small products of experts"), 0);
  folder.write("r.toml", run_test::tiny_config({.data = 2, .expert = 2}));
  const nlohmann::json padded = why(folder, {"plugins.expert.padded=true", "moe.capacity_factor=4"});
  EXPECT_GT(share_of(padded, "padding"), 0);
  EXPECT_GT(share_of(padded, "exposed exchange"), 0);
}

}  // namespace
}  // namespace orthant::trace_test::causes_test
