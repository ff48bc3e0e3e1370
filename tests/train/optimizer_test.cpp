// The learning rate against numbers worked out by hand, and whole optimizer steps against a plain loop in fp64.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/learning_rate.h>

#include <cmath>
#include <limits>
#include <map>

#include "core/train/optimizer_step.h"
#include "tests/support/experiment.h"

namespace orthant::optimizer_test {
namespace {

using test::experiment;
using test::joined;
using test::OneRank;
using test::Overrides;

Settings rates(const std::string& schedule, std::int64_t steps) {
  Settings s;
  s.run.steps = steps;
  s.optimizer.lr = 0.8;
  s.optimizer.min_lr = 0.2;
  s.optimizer.schedule = schedule;
  s.optimizer.warmup_steps = 3;
  return s;
}

TEST(LearningRate, WarmsUpLinearly) {
  const std::vector<std::string> all = Settings().catalogue->names<LearningRate>();
  EXPECT_THAT(all, testing::ElementsAre("constant", "cosine", "inverse_sqrt", "wsd", "wsd_sqrt"));
  for (const std::string& name : all) {
    const Settings s = rates(name, 100);
    EXPECT_DOUBLE_EQ(learning_rate(s, 0), 0.2) << "a quarter: the first step already learns";
    EXPECT_DOUBLE_EQ(learning_rate(s, 1), 0.4);
    EXPECT_NEAR(learning_rate(s, 2), 0.6, 1e-15);
    EXPECT_DOUBLE_EQ(learning_rate(s, 3), 0.8) << "the peak";
  }
}

TEST(LearningRate, StaysConstant) {
  EXPECT_DOUBLE_EQ(learning_rate(rates("constant", 100), 99), 0.8);
}

TEST(LearningRate, FollowsTheCosineToItsEnd) {
  const Settings eleven = rates("cosine", 11);
  // From step 3 to step 11: half way at 7, where the cosine is 0; a quarter at 5, cos(45 degrees).
  EXPECT_NEAR(learning_rate(eleven, 7), 0.5, 1e-12);
  EXPECT_NEAR(learning_rate(eleven, 5), 0.2 + 0.3 * (1 + 0.70710678118654752), 1e-12);
  EXPECT_NEAR(learning_rate(eleven, 11), 0.2, 1e-12);
  EXPECT_NEAR(learning_rate(eleven, 50), 0.2, 1e-12) << "and stays there";
  Settings five = rates("cosine", 100);
  five.optimizer.own["decay_steps"] = std::int64_t{5};
  EXPECT_NEAR(learning_rate(five, 4), 0.5, 1e-12);
  EXPECT_NEAR(learning_rate(five, 60), 0.2, 1e-12);
}

TEST(LearningRate, FallsAsTheInverseRoot) {
  const Settings s = rates("inverse_sqrt", 10000);
  EXPECT_NEAR(learning_rate(s, 15), 0.4, 1e-12) << "four times as many steps, half the rate";
  EXPECT_NEAR(learning_rate(s, 63), 0.2, 1e-12);
  EXPECT_NEAR(learning_rate(s, 5000), 0.2, 1e-12) << "never below min_lr";
}

// Hu et al., "MiniCPM": the rate stays until the decay, which ends with the run.
TEST(LearningRate, DecaysAtTheEndOfTheRun) {
  Settings s = rates("wsd", 100);
  s.optimizer.own["decay_steps"] = std::int64_t{20};
  EXPECT_DOUBLE_EQ(learning_rate(s, 4), 0.8);
  EXPECT_DOUBLE_EQ(learning_rate(s, 80), 0.8);
  EXPECT_NEAR(learning_rate(s, 85), 0.65, 1e-12) << "a quarter of the way from 0.8 to 0.2";
  EXPECT_NEAR(learning_rate(s, 90), 0.5, 1e-12);
  EXPECT_NEAR(learning_rate(s, 100), 0.2, 1e-12);
  s.optimizer.schedule = "wsd_sqrt";
  EXPECT_DOUBLE_EQ(learning_rate(s, 80), 0.8);
  EXPECT_NEAR(learning_rate(s, 85), 0.5, 1e-12) << "the root of a quarter";
  s.optimizer.own["decay_steps"] = std::int64_t{0};
  EXPECT_DOUBLE_EQ(learning_rate(s, 90), 0.8) << "a tenth of the run";
  EXPECT_NEAR(learning_rate(s, 99), 0.8 - 0.6 * std::sqrt(0.9), 1e-12);
}

TEST(LearningRate, ADecayLongerThanTheRunIsRefused) {
  const Overrides wsd = {R"(optimizer.schedule="wsd")", "optimizer.warmup_steps=5", "run.steps=20"};
  EXPECT_NO_THROW(experiment(joined(wsd, {"optimizer.decay_steps=15"})));
  EXPECT_THAT(test::refusal(joined(wsd, {"optimizer.decay_steps=16"}), ""),
              testing::HasSubstr("a warm-up of 5 steps and a decay of 16 are more than the 20 of the run"));
  // So is the decay that nobody wrote: a tenth of the run.
  EXPECT_NO_THROW(experiment(joined(wsd, {"optimizer.warmup_steps=18"})));
  EXPECT_THAT(
      test::refusal(joined(wsd, {"optimizer.warmup_steps=19"}), ""),
      testing::HasSubstr("[optimizer] warmup_steps: a warm-up of 19 steps and a decay of 2 (a tenth of the run) "
                         "are more than the 20 of the run"));
  EXPECT_NO_THROW(experiment(joined(wsd, {"optimizer.warmup_steps=19", "optimizer.decay_steps=1"})));
}

// Settings that no configuration has checked, as a plugin's tests may make them.
TEST(LearningRate, ADecayOfAnyLengthIsCompared) {
  Settings s = rates("wsd", 20);
  s.optimizer.own["decay_steps"] = std::numeric_limits<std::int64_t>::max();
  EXPECT_THROW(s.catalogue->get<LearningRate>("wsd").check(s.optimizer, s.run.steps), SettingError);
}

// --- whole steps

using Parameters = std::map<std::string, std::vector<double>>;

std::vector<double> wide(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

double norm_of(const Parameters& gradients) {
  double squares = 0;
  for (const auto& [name, values] : gradients) {
    for (double g : values) {
      squares += g * g;
    }
  }
  return std::sqrt(squares);
}

bool is_norm(const std::string& name) {
  return name.find("norm") != std::string::npos;
}

void expect_near(const std::vector<float>& got, const std::vector<double>& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(got[i]), expected[i], 2e-6 * (std::abs(expected[i]) + 0.01)) << what << " at " << i;
  }
}

// Two steps; the gradients are the trainer's own, everything after them is done again here.
TEST(OptimizerSteps, AdamWIsTheDefinition) {
  const Config config =
      experiment({"optimizer.lr=0.02", "optimizer.betas=[0.8, 0.95]", "optimizer.eps=1e-5",
                  "optimizer.weight_decay=0.3", "optimizer.clip_grad_norm=0.1", R"(model.norm="layernorm")"});
  OneRank rank(config);
  Parameters x, m, v;
  for (const std::string& name : rank->names()) {
    x[name] = wide(rank->weight(name));
    m[name].assign(x[name].size(), 0);
    v[name] = m[name];
  }
  for (int step = 0; step < 2; ++step) {
    const StepReport report = rank->trainer().gradients(step);
    Parameters gradients;
    for (const auto& [name, ignored] : x) {
      gradients[name] = wide(rank->gradient(name));
    }
    const double norm = norm_of(gradients);
    EXPECT_NEAR(report.grad_norm / norm, 1, 1e-9);
    ASSERT_GT(norm, 0.1) << "so that the gradient is clipped";
    rank->trainer().apply(step);
    for (auto& [name, weights] : x) {
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const double g = gradients[name][i] * 0.1 / norm;
        m[name][i] = 0.8 * m[name][i] + 0.2 * g;
        v[name][i] = 0.95 * v[name][i] + 0.05 * g * g;
        const double m_hat = m[name][i] / (step == 0 ? 0.2 : 0.36);     // 1 - 0.8^t
        const double v_hat = v[name][i] / (step == 0 ? 0.05 : 0.0975);  // 1 - 0.95^t
        const double decay = is_norm(name) ? 0 : 0.3;                   // matrices only
        weights[i] -= 0.02 * (m_hat / (std::sqrt(v_hat) + 1e-5) + decay * weights[i]);
      }
      expect_near(rank->weight(name), weights, name);
      expect_near(rank->state("moment1", name), m[name], "moment1 of " + name);
      expect_near(rank->state("moment2", name), v[name], "moment2 of " + name);
    }
  }
}

TEST(OptimizerSteps, SgdIsTheDefinition) {
  const Config config = experiment({R"(optimizer.name="sgd")", "optimizer.lr=0.5", "optimizer.momentum=0.9",
                                    "optimizer.weight_decay=0.1", "optimizer.clip_grad_norm=0"});
  OneRank rank(config);
  Parameters x, m;
  for (const std::string& name : rank->names()) {
    x[name] = wide(rank->weight(name));
    m[name].assign(x[name].size(), 0);
  }
  for (int step = 0; step < 2; ++step) {
    rank->trainer().gradients(step);
    Parameters gradients;
    for (const auto& [name, ignored] : x) {
      gradients[name] = wide(rank->gradient(name));
    }
    rank->trainer().apply(step);
    for (auto& [name, weights] : x) {
      for (std::size_t i = 0; i < weights.size(); ++i) {
        m[name][i] = 0.9 * m[name][i] + gradients[name][i] + (is_norm(name) ? 0 : 0.1) * weights[i];
        weights[i] -= 0.5 * m[name][i];
      }
      expect_near(rank->weight(name), weights, name);
    }
  }
}

// In bf16 the master weights keep what the compute weights cannot hold: many small steps add up.
TEST(OptimizerSteps, MasterWeightsKeepSmallSteps) {
  const double rate = 1e-5;  // far below the 4e-4 or more between two bf16 numbers near these weights
  OneRank rank(experiment({R"(run.dtype="bf16")", "optimizer.lr=1e-5", "optimizer.weight_decay=0"}));
  const std::string name = "lm_head.weight";
  rank->trainer().step(0);
  const std::vector<float> before = rank->weight(name);
  constexpr int more = 10;
  for (int step = 1; step <= more; ++step) {
    rank->trainer().step(step);
  }
  const std::vector<float> after = rank->weight(name);
  std::size_t small_moves = 0;
  for (std::size_t i = 0; i < after.size(); ++i) {
    const double moved = std::abs(static_cast<double>(after[i]) - static_cast<double>(before[i]));
    EXPECT_LE(moved, 1.5 * more * rate) << "no step of Adam is much longer than its rate";
    small_moves += moved > rate ? 1 : 0;
  }
  EXPECT_GT(small_moves, after.size() / 2);
}

}  // namespace
}  // namespace orthant::optimizer_test
