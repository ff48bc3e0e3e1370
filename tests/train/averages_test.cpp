// The moving average of the weights against a plain loop in fp64 over the weights that each step leaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/optimizer.h>
#include <orthant/weight_average.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/layers/parameter_state.h"
#include "tests/support/error_of.h"
#include "tests/support/experiment.h"

namespace orthant::averages_test {
namespace {

using test::experiment;
using test::joined;
using test::OneRank;
using test::Overrides;
using test::refusal;
using testing::HasSubstr;

const Overrides averaged = {"optimizer.ema_decay=0.7", "optimizer.lr=0.02"};

// TensorFlow's ExponentialMovingAverage with num_updates: min(decay, (1 + s) / (10 + s)).
TEST(AverageDecay, WarmsUp) {
  OptimizerSettings settings;
  settings.ema_decay = 0.95;
  EXPECT_DOUBLE_EQ(average_decay(settings, 0), 0.1);
  EXPECT_DOUBLE_EQ(average_decay(settings, 8), 0.5);
  EXPECT_DOUBLE_EQ(average_decay(settings, 80), 0.9);
  EXPECT_DOUBLE_EQ(average_decay(settings, 1000), 0.95);
  settings.ema_decay = 0.05;
  EXPECT_DOUBLE_EQ(average_decay(settings, 0), 0.05);
}

class Averages : public testing::TestWithParam<test::Model> {};

TEST_P(Averages, AreThoseOfTheWeightsOfEachStep) {
  OneRank rank(experiment(joined(averaged, GetParam().overrides)));
  std::map<std::string, std::vector<double>> expected, began;
  for (const std::string& name : rank->names()) {
    const std::vector<float> x = rank->weight(name);
    expected[name] = {x.begin(), x.end()};
    ASSERT_EQ(rank->state(average_state, name), x) << name << ": an average begins as the weights";
  }
  began = expected;
  constexpr int steps = 22;  // the warm-up ends at step 20
  for (int step = 0; step < steps; ++step) {
    rank->trainer().step(step);
    const double d = std::min(0.7, (1.0 + step) / (10.0 + step));
    for (auto& [name, e] : expected) {
      const std::vector<float> x = rank->weight(name);
      for (std::size_t i = 0; i < e.size(); ++i) {
        e[i] = d * e[i] + (1 - d) * static_cast<double>(x[i]);
      }
    }
  }
  double moved = 0, differs = 0;
  for (const auto& [name, e] : expected) {
    const std::vector<float> got = rank->state(average_state, name), x = rank->weight(name);
    for (std::size_t i = 0; i < e.size(); ++i) {
      ASSERT_NEAR(static_cast<double>(got[i]), e[i], 1e-6 * (std::abs(e[i]) + 0.01)) << name << " at " << i;
      moved += std::abs(e[i] - began[name][i]);
      differs += std::abs(e[i] - static_cast<double>(x[i]));
    }
  }
  EXPECT_GT(moved, 1);
  EXPECT_GT(differs, 1);
}

const Overrides few_bits = {"run.dtype=\"bf16\"", "optimizer.master_weights=\"none\"", "optimizer.state_dtype=\"8bit\"",
                            "model.d_model=32", "model.d_ff=32"};
INSTANTIATE_TEST_SUITE_P(
    Of, Averages,
    testing::Values(test::Model{"adamw", {}}, test::Model{"sgd", {"optimizer.name=\"sgd\""}},
                    test::Model{"muon", {"optimizer.name=\"muon\""}}, test::Model{"bf16", {"run.dtype=\"bf16\""}},
                    test::Model{"few_bits", few_bits},
                    test::Model{"in_backward", {"optimizer.in_backward=true", "optimizer.clip_grad_norm=0"}},
                    test::Model{"tied", {"model.tie_embeddings=true"}}, test::Model{"late", {"run.device=\"late\""}},
                    test::Model{"guarded", {"run.device=\"guarded\""}}),
    [](const auto& made) { return made.param.name; });

TEST(Averages, ChangeNoWeight) {
  OneRank with(experiment(averaged)), without(experiment({"optimizer.lr=0.02"}));
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(with->trainer().step(step).loss, without->trainer().step(step).loss);
  }
  EXPECT_EQ(with->weight("lm_head.weight"), without->weight("lm_head.weight"));
}

// What is at rest stays: the average neither shrinks nor grows with the steps, whatever the decay.
TEST(Averages, OfWeightsThatStayAreTheWeights) {
  for (const double decay : {0.3, 0.9, 0.999, 0.99999}) {
    OptimizerSettings settings;
    settings.ema_decay = decay;
    OneRank rank(experiment());
    Stream& s = rank->stream();
    const std::vector<float> x = rank->weight("lm_head.weight");
    const Shape n{static_cast<std::int64_t>(x.size())};
    const Tensor weights = s.device().empty(DType::f32, n), average = s.device().empty(DType::f32, n),
                 finite = s.device().empty(DType::f32, {1});
    s.fill(finite, 1);
    s.upload(weights, x.data());
    s.upload(average, x.data());
    constexpr int steps = 20000;
    for (int step = 0; step < steps; ++step) {
      move_average(average, weights, finite, settings, step, s);
    }
    std::vector<float> got(x.size());
    s.download(got.data(), average);
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_NEAR(got[i], x[i], 1e-4 * std::abs(x[i])) << decay << " at " << i;
    }
  }
}

TEST(Averages, OfFrozenParametersAreNotKept) {
  OneRank rank(experiment(joined(averaged, {"lora.rank=2", R"(lora.targets=["*.q_proj.weight"])"})));
  std::size_t elements = 0;
  for (const auto& group : rank->trainer().parameters().groups()) {
    if (const ParamState* average = average_of(*group)) {
      elements += static_cast<std::size_t>(average->elements);
    }
  }
  EXPECT_EQ(elements, 2u * 2 * (16 * 2)) << "A and B of two matrices";
}

// An optimizer that has given the name to a state of its own.
class OwnAverage final : public Optimizer {
 public:
  Treatment treatment(const ParamSpec&, const OptimizerSettings&) const override { return {.states = {{"ema"}}}; }
  void update(const UpdateSlice&, const UpdateStep&, Stream&) const override {}
};

TEST(Averages, AStateOfThatNameIsRefused) {
  Config config = experiment();
  const auto catalogue = built_in_catalogue();
  catalogue->add<Optimizer>("own_average", "Refused.", std::make_shared<OwnAverage>());
  config.settings.catalogue = catalogue;
  config.settings.optimizer.name = "own_average";
  EXPECT_THAT(test::error_of([&] { OneRank rank(config); }),
              AllOf(HasSubstr("optimizer 'own_average' has a state 'ema'"), HasSubstr("optimizer.ema_decay")));
}

TEST(Averages, DecaysOfOneAndMoreAreRefused) {
  EXPECT_THAT(refusal({"optimizer.ema_decay=1"}, ""), HasSubstr("ema_decay: 1 is not below 1"));
  EXPECT_THAT(refusal({"optimizer.ema_decay=0.99999999"}, ""), HasSubstr("is not below 1 in single precision"));
  EXPECT_THAT(refusal({"optimizer.ema_decay=-0.1"}, ""), HasSubstr("ema_decay"));
  EXPECT_THAT(refusal({"optimizer.ema_decay=nan"}, ""), HasSubstr("ema_decay"));
}

}  // namespace
}  // namespace orthant::averages_test
