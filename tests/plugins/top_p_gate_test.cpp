// examples/plugins/top_p_gate.cpp: the choices against the rule written out in f64, and what every gate promises.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/device.h>
#include <orthant/gate.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "apps/check/gate_checks.h"
#include "apps/verify/verify.h"
#include "tests/support/parity.h"
#include "tests/support/paths.h"

namespace orthant::run_test::top_p_gate_test {
namespace {

using test::experiment;
using test::Overrides;

std::string plugin() {
  return fmt::format("[plugins.top_p_gate]\npath = \"{}\"\n", paths::out_of_tree("top_p_gate"));
}

Config routed(const Overrides& overrides, const std::string& axes = "") {
  return experiment(test::joined({R"(moe.router="top_p")", "moe.experts=8", "moe.top_k=5"}, overrides),
                    axes + plugin());
}

// Of one token, the likeliest first.
std::vector<std::int32_t> expected(const float* logit, std::size_t experts, std::size_t most, double top_p) {
  std::vector<std::size_t> order(experts);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return logit[a] > logit[b]; });
  double whole = 0, sum = 0;
  for (std::size_t e = 0; e < experts; ++e) {
    whole += std::exp(static_cast<double>(logit[e]));
  }
  std::vector<std::int32_t> chosen(most, -1);
  for (std::size_t k = 0; k < most && sum < top_p * whole; ++k) {
    chosen[k] = static_cast<std::int32_t>(order[k]);
    sum += std::exp(static_cast<double>(logit[order[k]]));
  }
  return chosen;
}

TEST(TopPGate, TakesTheLikeliestUntilTheSum) {
  const Settings s = routed({"moe.top_p=0.7"}).settings;
  const Gate& gate = gate_of(s);
  const GateConfig config = gate.config(s);
  const std::int64_t tokens = config.group_tokens * 4, experts = config.experts, most = config.top_k;
  const std::unique_ptr<Device> device = make_device("cpu", 1);
  const std::unique_ptr<Stream> stream = device->make_main_stream();
  std::vector<float> logits(static_cast<std::size_t>(tokens * experts));
  std::mt19937 random(3);
  std::generate(logits.begin(), logits.end(), [&] { return std::normal_distribution<float>(0, 2)(random); });
  std::vector<std::uint8_t> valid(static_cast<std::size_t>(tokens), 1);
  valid.back() = 0;
  GateInput from;
  from.logits = device->empty(DType::f32, {tokens, experts});
  from.valid = device->empty(DType::u8, {tokens});
  from.index = device->empty(DType::i64, {tokens});
  from.moe = &s.moe;
  stream->upload(from.logits, logits.data());
  stream->upload(from.valid, valid.data());
  const GateChoice to{.expert = device->empty(DType::i32, {tokens, most}),
                      .weight = device->empty(DType::f32, {tokens, most}),
                      .lse = device->empty(DType::f32, {tokens}),
                      .chosen = device->empty(DType::i32, {4, experts}),
                      .share = device->empty(DType::f64, {4, experts})};
  gate.choose(to, from, config, *stream);
  std::vector<std::int32_t> expert(static_cast<std::size_t>(tokens * most));
  std::vector<float> weight(expert.size());
  stream->download(expert.data(), to.expert);
  stream->download(weight.data(), to.weight);
  std::vector<std::size_t> tokens_with(static_cast<std::size_t>(most) + 1);
  for (std::size_t t = 0; t + 1 < valid.size(); ++t) {
    const auto first = expert.begin() + static_cast<std::ptrdiff_t>(t) * most;
    const std::vector<std::int32_t> found(first, first + most);
    EXPECT_EQ(found, expected(&logits[t * static_cast<std::size_t>(experts)], static_cast<std::size_t>(experts),
                              static_cast<std::size_t>(most), 0.7))
        << t;
    ++tokens_with[static_cast<std::size_t>(std::count_if(first, first + most, [](auto e) { return e >= 0; }))];
    const auto weights = weight.begin() + static_cast<std::ptrdiff_t>(t) * most;
    EXPECT_NEAR(std::accumulate(weights, weights + most, 0.0), 1.0, 1e-6) << t;
  }
  EXPECT_TRUE(std::all_of(expert.end() - most, expert.end(), [](auto e) { return e == -1; }));
  EXPECT_EQ(tokens_with[0], 0u);
  EXPECT_GT(tokens_with[1], 0u);  // else the sum is not what ends the choice
  EXPECT_GT(tokens_with[3], 0u);
}

TEST(TopPGate, KeepsTheContractAndTheLayout) {
  const Finding found = check_gate(routed({"moe.top_p=0.5"}).settings);
  EXPECT_EQ(found.outcome, Outcome::ok) << found.detail;
  const VerifyReport report = verify(routed({"moe.top_p=0.5", "moe.capacity_factor=1.0"}, test::axes(2, 2)), 2);
  EXPECT_TRUE(report.ok()) << test::differences(report);
}

TEST(TopPGate, RefusesOtherScores) {
  EXPECT_THAT(test::refusal({R"(moe.router="top_p")", R"(moe.score="sigmoid")"}, plugin()),
              testing::HasSubstr("[moe] score: the top_p gate sums probabilities"));
}

}  // namespace
}  // namespace orthant::run_test::top_p_gate_test
