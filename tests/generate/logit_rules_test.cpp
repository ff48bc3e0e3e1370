// What penalties, bias and min_tokens make of logits, against transformers' processors (make_processors.py).
#include "apps/lm/logit_rules.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include <orthant/error.h>

#include "tests/support/paths.h"

namespace orthant::logit_rules_test {
namespace {

using nlohmann::json;

TEST(LogitRules, AreThoseOfTransformers) {
  std::ifstream file(paths::source("tests/generate/logit_rules.json"));
  const json cases = json::parse(file);
  EXPECT_EQ(cases.size(), 10);
  for (const json& one : cases) {
    Sampling sampling;
    sampling.repetition_penalty = one.value("repetition_penalty", 1.0);
    sampling.presence_penalty = one.value("presence_penalty", 0.0);
    sampling.frequency_penalty = one.value("frequency_penalty", 0.0);
    const json bias = one.value("bias", json::object());
    for (const auto& item : bias.items()) {
      sampling.bias[std::stoi(item.key())] = item.value().get<float>();
    }
    const auto prompt = one["prompt"].get<std::vector<std::int32_t>>();
    const auto answer = one["answer"].get<std::vector<std::int32_t>>();
    LogitRules rules(sampling, prompt);
    for (const std::int32_t id : answer) {
      rules.add(id);
    }
    const bool early = answer.size() < one.value("min_tokens", std::size_t{0});
    const auto ends = early ? one["stop_ids"].get<std::vector<std::int32_t>>() : std::vector<std::int32_t>();
    auto logits = one["logits"].get<std::vector<float>>();
    const std::vector<float> before = logits;
    rules.apply(logits, ends);
    EXPECT_EQ(rules.neutral(ends), logits == before) << one;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      if (one["expected"][i].is_null()) {
        EXPECT_EQ(logits[i], -INFINITY) << one << i;
      } else {
        EXPECT_NEAR(logits[i], one["expected"][i].get<float>(), 1e-6) << one << i;
      }
    }
  }
}

TEST(LogitRules, LeaveAToken) {
  const Sampling sampling;
  const LogitRules rules(sampling, {});
  std::vector<float> logits = {1, 2};
  const std::vector<std::int32_t> ends = {0, 1};
  EXPECT_THROW(rules.apply(logits, ends), Error);
}

}  // namespace
}  // namespace orthant::logit_rules_test
