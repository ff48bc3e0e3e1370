// What is told of routing is that of the global batch, in every layout.
#include <gtest/gtest.h>

#include <algorithm>

#include "parallel/local/thread_world.h"
#include "tests/support/parity.h"
#include "tests/support/paths.h"

namespace orthant::routing_metrics_test {
namespace {

using test::experiment;
using test::Overrides;

std::string table(const std::string& axis, int size, const std::string& keys = "") {
  return fmt::format("[plugins.{}]\nsize = {}\n{}", axis, size, keys);
}

struct Told {
  StepReport step;
  std::vector<ValidatedRouting> first, second;
};

Told told_by_rank(Communicator& communicator, const Config& config) {
  test::TestRank rank(config, communicator);
  Told told;
  told.first = rank.trainer().validate_sets().routing;
  told.step = rank.trainer().step(0, true);
  told.second = rank.trainer().validate_sets().routing;
  return told;
}

std::vector<Told> told(const Overrides& overrides, const std::string& plugins) {
  const Config config = experiment(overrides, plugins);
  std::vector<Told> all(check_layout(config));
  run_threads(static_cast<int>(all.size()), [&](Communicator& communicator) {
    all[static_cast<std::size_t>(communicator.rank())] = told_by_rank(communicator, config);
  });
  return all;
}

void expect_near(double got, double want, double tolerance, const std::string& what) {
  EXPECT_NEAR(got, want, tolerance * std::max(1e-3, std::abs(want))) << what;
}

TEST(RoutingMetrics, AreThoseOfOneRank) {
  const Overrides base = {"model.layers=4",   "moe.every=2",     "moe.experts=8",
                          "moe.aux_loss=0.5", "moe.z_loss=0.01", "moe.capacity_factor=1.0"};
  const std::vector<Overrides> gates = {{R"(moe.router="topk")", "moe.top_k=2"},
                                        {R"(moe.router="gshard")", "moe.top_k=2", "batch.micro_batch=2"},
                                        {R"(moe.router="expert_choice")", "moe.top_k=0"}};
  const std::vector<std::string> layouts = {
      table("data", 2), table("data", 4) + table("expert", 4),
      table("tensor", 2) + table("pipeline", 2) + table("data", 2, "zero = 2\n") + table("expert", 2),
      table("sequence", 2) + table("data", 2) + table("expert", 4), table("tensor", 2, "sequence_parallel = true\n")};
  for (const Overrides& gate : gates) {
    const Overrides model = test::joined(base, gate);
    const Told one = told(model, "").front();
    for (const std::string& plugins : layouts) {
      for (const Told& other : told(model, plugins)) {
        const std::string what = testing::PrintToString(gate) + " over\n" + plugins;
        ASSERT_EQ(other.step.routing.size(), one.step.routing.size()) << what;
        for (std::size_t i = 0; i < one.step.routing.size(); ++i) {
          const LayerRouting &got = other.step.routing[i], &want = one.step.routing[i];
          EXPECT_EQ(got.block, want.block) << what;
          EXPECT_EQ(got.dead_experts, want.dead_experts) << what;
          EXPECT_DOUBLE_EQ(got.choice_entropy, want.choice_entropy) << what;
          EXPECT_EQ(got.margin.has_value(), want.margin.has_value()) << what;
          expect_near(got.probability_entropy, want.probability_entropy, 1e-6, what);
          expect_near(got.margin.value_or(0), want.margin.value_or(0), 1e-5, what);
          expect_near(got.grad_norm_loss, want.grad_norm_loss, 1e-4, what);
          expect_near(got.grad_norm_balance, want.grad_norm_balance, 1e-4, what);
          expect_near(got.grad_norm_z, want.grad_norm_z, 1e-4, what);
          EXPECT_EQ(other.first[i].pairs, one.first[i].pairs) << what;
          EXPECT_FALSE(other.first[i].churn.has_value()) << what;
          EXPECT_EQ(other.second[i].churn.has_value(), one.second[i].churn.has_value()) << what;
        }
      }
    }
  }
}

// Weights agree to rounding after a step, and so do choices but for near ties: untrained weights agree in every bit.
TEST(RoutingMetrics, CountAChangeOnce) {
  const Overrides model = {"moe.experts=4", "moe.top_k=2"};
  const auto churn = [&](const std::string& plugins) {
    const Config config = experiment(model, plugins);
    std::vector<double> found(static_cast<std::size_t>(check_layout(config)), -1);
    run_threads(static_cast<int>(found.size()), [&](Communicator& communicator) {
      test::TestRank rank(config, communicator);
      std::vector<ValidatedRouting> routing;
      routing = rank.trainer().validate_sets().routing;
      // Another router: every logit of the first expert is 0, those of the others are as before.
      const std::string name = "model.layers.1.block_sparse_moe.gate.weight";
      std::vector<float> weight = rank.weight(name);
      std::fill(weight.begin(), weight.begin() + 16, 0.0f);
      rank.set_weight(name, weight);
      routing = rank.trainer().validate_sets().routing;
      EXPECT_EQ(routing[0].churn.value_or(-1), 0.0);
      found[static_cast<std::size_t>(communicator.rank())] = routing[1].churn.value_or(-1);
    });
    return found;
  };
  const double one = churn("").front();
  EXPECT_GT(one, 0.05);
  EXPECT_LT(one, 0.95);
  for (const std::string& plugins : {table("data", 2), table("sequence", 2), table("data", 4) + table("expert", 2),
                                     table("tensor", 2, "sequence_parallel = true\n")}) {
    for (const double other : churn(plugins)) {
      EXPECT_NEAR(other, one, 0.011) << plugins;  // a near tie in 768 tokens, and no count twice
    }
  }
}

}  // namespace
}  // namespace orthant::routing_metrics_test
