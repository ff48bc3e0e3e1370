// Step times: parts add up, closed forms hold where there are any, and what should cost more does.
#include "apps/cost/step_time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/cost/shapes.h"
#include "tests/support/error_of.h"

namespace orthant::cost_test {
namespace {

using cost::Layout;
using cost::ModelShape;
using testing::HasSubstr;

ModelShape mixture() {
  ModelShape model = gpt_175b();
  model.layers = 8;
  model.hidden = 2048;
  model.heads = model.kv_heads = 16;
  model.ffn = 0;
  model.gated = true;
  model.experts = 16;
  model.top_k = 2;
  model.expert_ffn = 4096;
  return model;
}

const cost::Practice practice;

double seconds(const ModelShape& model, const Layout& layout, const cost::Routing& routing = {}) {
  return cost::step_time(model, layout, round_machine(), practice, routing).seconds;
}

TEST(StepTime, PartsAddUp) {
  for (const int pipeline : {1, 4}) {
    for (const int zero : {0, 1, 3}) {
      Layout layout = layout_of(64, 4, pipeline, 64, 1);
      layout.zero = zero;
      const cost::StepTime time = cost::step_time(gpt_175b(), layout, round_machine(), practice);
      EXPECT_NEAR(time.work.total() + time.waiting + time.messages + time.gather + time.uneven + time.gradients +
                      time.update + time.host,
                  time.seconds, 1e-9 * time.seconds);
      EXPECT_GE(time.waiting, 0);
      EXPECT_EQ(time.gather > 0, zero == 3);
    }
  }
}

// 96 B s l h^2 (1 + s / 6h + V / 16 l h), with everything computed once more but the head: Narayanan et al., SC 2021,
// equation 3. Without it, 72 instead of 96.
TEST(StepTime, FlopsAreThoseOfTheFormula) {
  const ModelShape model = gpt_175b();
  const double l = model.layers, h = model.hidden, s = model.sequence, v = model.vocabulary, b = 1536;
  const double formula = 72 * b * s * l * h * h * (1 + s / (6 * h) + v / (12 * l * h));
  EXPECT_NEAR(cost::model_flops(model, b, false) / formula, 1, 1e-12);
  EXPECT_NEAR(cost::model_flops(model, b, true) / (72 * b * s * l * h * h * (1 + s / (12 * h) + v / (12 * l * h))), 1,
              1e-12);
}

TEST(StepTime, LargeProductsTakeTheirFlopsAtTheRateOfTheMachine) {
  const cost::Machine machine = round_machine();
  const double n = 65536;  // 2 n^3 / 1e14 s, and 6 n^2 / 1e12 s for its bytes
  EXPECT_NEAR(cost::product_seconds(machine, cost::Precision::half, n, n, n), 2 * n * n * n / 1e14 + 6 * n * n / 1e12,
              1e-9);
  EXPECT_LT(cost::product_seconds(machine, cost::Precision::fp8, n, n, n),
            0.52 * cost::product_seconds(machine, cost::Precision::half, n, n, n));
  // Few rows are slow: half of them take more than half of the time.
  EXPECT_GT(cost::product_seconds(machine, cost::Precision::half, 64, 4096, 4096),
            0.6 * cost::product_seconds(machine, cost::Precision::half, 128, 4096, 4096));
}

TEST(StepTime, LinksAndBubblesCost) {
  const ModelShape model = gpt_175b();
  const double inside = seconds(model, layout_of(64, 8, 8, 64, 1));
  EXPECT_GT(seconds(model, layout_of(64, 16, 4, 64, 1)), inside);  // tensor 16 leaves the node
  EXPECT_GT(seconds(model, layout_of(64, 8, 8, 16, 1)) / 16, seconds(model, layout_of(64, 8, 8, 256, 1)) / 256);
  Layout chunks = layout_of(64, 8, 8, 16, 1);
  chunks.chunks = 3;
  EXPECT_LT(seconds(model, chunks), seconds(model, layout_of(64, 8, 8, 16, 1)));
  Layout again = layout_of(64, 8, 8, 64, 1);
  again.recompute = cost::Recompute::full;
  EXPECT_NEAR(seconds(model, again) / inside, 4.0 / 3, 0.05);
}

TEST(StepTime, ABatchOnTwiceTheRanksTakesHalf) {
  const ModelShape model = gpt_175b();
  const double one = seconds(model, layout_of(64, 8, 8, 512, 1)), two = seconds(model, layout_of(128, 8, 8, 512, 1));
  EXPECT_GT(two, one / 2);
  EXPECT_LT(two, one / 1.7);
}

TEST(StepTime, TheBusiestRankCounts) {
  Layout layout = layout_of(16, 1, 1, 64, 1);
  layout.expert = 8;
  layout.overlapped = false;
  const ModelShape model = mixture();
  const double balanced = seconds(model, layout), skewed = seconds(model, layout, {2, {}});
  EXPECT_GT(skewed, 1.2 * balanced);
  // A recording in which every micro-batch has the same imbalance is that skew.
  std::vector<double> load(16, 1);
  load[0] = load[1] = 3;  // of the first rank: 6, where the mean is 20 / 8
  EXPECT_DOUBLE_EQ(cost::imbalance({1, {load}}, 16, 8, 0), 2.4);
  EXPECT_NEAR(seconds(model, layout, {1, {load}}), seconds(model, layout, {2.4, {}}), 1e-9);
  // Micro-batch by micro-batch: half of them balanced cost half of the difference.
  const std::vector<double> even(16, 1);
  const double half = seconds(model, layout, {1, {load, even}});
  EXPECT_NEAR(half, (seconds(model, layout, {1, {load}}) + seconds(model, layout, {1, {even}})) / 2, 1e-3 * half);
  EXPECT_THAT(test::error_of([] {
                return cost::imbalance({1, {{1, 2, 3}}}, 16, 8, 0);
              }),
              HasSubstr("a recorded load has 3 experts, the model 16"));
}

TEST(StepTime, IsTheSumAlongTheChainThatDecides) {
  for (const int chunks : {1, 3}) {
    Layout layout = layout_of(64, 4, 8, 128, 1);
    layout.chunks = chunks;
    const cost::StepClock clock(layout);
    const cost::Machine machine = round_machine();
    const cost::ClockResult course = cost::step_course(gpt_175b(), layout, machine, practice, clock);
    EXPECT_NEAR(cost::seconds_along(course, gpt_175b(), layout, machine, practice), seconds(gpt_175b(), layout), 1e-6);
    cost::Machine faster = machine;
    faster.factors.products *= 1.01;
    EXPECT_NEAR(cost::seconds_along(course, gpt_175b(), layout, faster, practice),
                cost::step_time(gpt_175b(), layout, faster, practice).seconds, 1e-3);
  }
}

TEST(StepTime, WhatTheHostCannotLaunchInTimeWaits) {
  cost::Machine machine = round_machine();
  machine.factors.launch = 1e-3;
  Layout layout = layout_of(8, 1, 1, 8, 1);
  const cost::StepTime time = cost::step_time(mixture(), layout, machine, practice);
  EXPECT_GT(time.work.launch, 0.5 * time.seconds);
  layout.recorded = true;
  EXPECT_EQ(cost::step_time(mixture(), layout, machine, practice).work.launch, 0);
}

TEST(StepTime, ATokenIsSentOnceToANode) {
  ModelShape model = mixture();
  model.experts = 64;
  model.top_k = 8;
  Layout layout = layout_of(64, 1, 1, 64, 1);
  layout.expert = 32;
  const double each = cost::step_time(model, layout, round_machine(), practice).work.expert;
  layout.once_a_node = true;
  const double once = cost::step_time(model, layout, round_machine(), practice).work.expert;
  EXPECT_LT(once, 0.7 * each);
  layout.hidden_exchange = true;
  const double shown = cost::step_time(model, layout, round_machine(), practice).work.expert;
  EXPECT_LT(shown, once);
  EXPECT_GE(shown, (1 - practice.overlap) * once * (1 - 1e-9));
}

TEST(StepTime, LayoutsThatDoNotDivideAreRefusedByName) {
  const ModelShape model = mixture();
  const auto refusal = [&](auto change) {
    Layout layout = layout_of(64, 4, 4, 64, 1);
    change(layout);
    return test::error_of([&] { cost::check_layout(model, layout); });
  };
  EXPECT_EQ(refusal([](Layout&) {}), "no error");
  EXPECT_THAT(refusal([](Layout& l) { l.tensor = 3; }), HasSubstr("64 ranks are no multiple of tensor 3"));
  EXPECT_THAT(refusal([](Layout& l) { l.expert = 5; }), HasSubstr("no multiple of expert 5"));
  EXPECT_THAT(refusal([](Layout& l) { l.expert = 16, l.expert_tensor = 2; }), HasSubstr("expert 16 * expert_tensor 2"));
  EXPECT_THAT(refusal([](Layout& l) { l.chunks = 3; }), HasSubstr("8 blocks do not fill 12 pieces"));
  EXPECT_THAT(refusal([](Layout& l) { l.blocks = {2, 2, 2, 1}; }), HasSubstr("8 blocks do not fill 4 pieces"));
  EXPECT_THAT(refusal([](Layout& l) { l.pipeline = 0; }), HasSubstr("pipeline stages: 0, and must be above 0"));
  EXPECT_THAT(refusal([](Layout& l) { l.micro_batch = 0; }), HasSubstr("both must be above 0"));
}

TEST(StepTime, BlocksAreSpreadEvenly) {
  Layout layout = layout_of(16, 1, 4, 16, 1);
  EXPECT_THAT(layout.blocks_of_pieces(8), testing::ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(layout.blocks_of_pieces(10), testing::ElementsAre(2, 3, 3, 2));
  ModelShape model = mixture();
  model.layers = 32;
  model.extra_layers = 1;
  const std::vector<int> blocks = cost::balanced_blocks(model, layout, round_machine(), practice);
  EXPECT_EQ(blocks[0] + blocks[1] + blocks[2] + blocks[3], 32);
  EXPECT_LT(blocks[3], blocks[1]);
}

}  // namespace
}  // namespace orthant::cost_test
