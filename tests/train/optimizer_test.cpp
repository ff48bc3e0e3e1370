// The learning rate against numbers worked out by hand, and whole optimizer steps against a plain loop in fp64.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "core/train/optimizer.h"
#include "tests/support/experiment.h"

namespace orthant {
namespace {

using test::experiment;
using test::OneRank;

OptimizerSettings rates(ScheduleKind schedule) {
  OptimizerSettings o;
  o.lr = 0.8;
  o.min_lr = 0.2;
  o.schedule = schedule;
  o.warmup_steps = 3;
  return o;
}

TEST(LearningRate, WarmsUpLinearly) {
  for (ScheduleKind kind : {ScheduleKind::constant, ScheduleKind::cosine, ScheduleKind::inverse_sqrt}) {
    const OptimizerSettings o = rates(kind);
    EXPECT_DOUBLE_EQ(learning_rate(o, 100, 0), 0.2) << "a quarter: the first step already learns";
    EXPECT_DOUBLE_EQ(learning_rate(o, 100, 1), 0.4);
    EXPECT_NEAR(learning_rate(o, 100, 2), 0.6, 1e-15);
    EXPECT_DOUBLE_EQ(learning_rate(o, 100, 3), 0.8) << "the peak";
  }
}

TEST(LearningRate, StaysConstant) {
  EXPECT_DOUBLE_EQ(learning_rate(rates(ScheduleKind::constant), 100, 99), 0.8);
}

TEST(LearningRate, FollowsTheCosineToItsEnd) {
  OptimizerSettings o = rates(ScheduleKind::cosine);
  // From step 3 to step 11: half way at 7, where the cosine is 0; a quarter at 5, cos(45 degrees).
  EXPECT_NEAR(learning_rate(o, 11, 7), 0.5, 1e-12);
  EXPECT_NEAR(learning_rate(o, 11, 5), 0.2 + 0.3 * (1 + 0.70710678118654752), 1e-12);
  EXPECT_NEAR(learning_rate(o, 11, 11), 0.2, 1e-12);
  EXPECT_NEAR(learning_rate(o, 11, 50), 0.2, 1e-12) << "and stays there";
  o.decay_steps = 5;
  EXPECT_NEAR(learning_rate(o, 100, 4), 0.5, 1e-12);
  EXPECT_NEAR(learning_rate(o, 100, 60), 0.2, 1e-12);
}

TEST(LearningRate, FallsAsTheInverseRoot) {
  const OptimizerSettings o = rates(ScheduleKind::inverse_sqrt);
  EXPECT_NEAR(learning_rate(o, 100, 15), 0.4, 1e-12) << "four times as many steps, half the rate";
  EXPECT_NEAR(learning_rate(o, 100, 63), 0.2, 1e-12);
  EXPECT_NEAR(learning_rate(o, 10000, 5000), 0.2, 1e-12) << "never below min_lr";
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
      expect_near(rank->moment1(name), m[name], "moment1 of " + name);
      expect_near(rank->moment2(name), v[name], "moment2 of " + name);
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
}  // namespace orthant
