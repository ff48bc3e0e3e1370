// Recorded loads, and steps that are made of them.
#include <gtest/gtest.h>

#include <algorithm>

#include "apps/cost/skew.h"
#include "tests/cost/shapes.h"

namespace orthant::cost_test {
namespace {

using cost::Loads;

// Two micro-batches, one layer, four experts.
const Loads loads = {{{6, 2, 1, 1}}, {{1, 7, 1, 1}}};

TEST(Skew, TheBusiestRankIsThatOfTheExpertsItHolds) {
  EXPECT_EQ(cost::in_order(loads, 2), (cost::ExpertPlaces{{0, 0, 1, 1}}));
  const cost::Routing two = cost::routing_of(loads, cost::in_order(loads, 2), 2);
  EXPECT_DOUBLE_EQ(two.busiest[0][0], 8.0 / 5);
  EXPECT_DOUBLE_EQ(two.busiest[1][0], 8.0 / 5);
  const cost::Routing one = cost::routing_of(loads, cost::in_order(loads, 1), 1);
  EXPECT_DOUBLE_EQ(one.busiest[0][0], 1);
  const cost::Routing four = cost::routing_of(loads, cost::in_order(loads, 4), 4);
  EXPECT_DOUBLE_EQ(four.busiest[1][0], 2.8);
}

// Means are 3.5, 4.5, 1, 1: the two busy ones part.
TEST(Skew, APlacementByLoadPartsBusyExperts) {
  EXPECT_EQ(cost::evened(loads, 2), (cost::ExpertPlaces{{1, 0, 1, 0}}));
  const cost::Routing placed = cost::routing_of(loads, cost::evened(loads, 2), 2);
  EXPECT_DOUBLE_EQ(placed.busiest[0][0], 7.0 / 5);
  EXPECT_DOUBLE_EQ(placed.busiest[1][0], 8.0 / 5);
}

TEST(Skew, ACapacityDropsWhatIsAboveIt) {
  double dropped = 0;
  const Loads less = cost::capped(loads, 2, dropped);
  EXPECT_EQ(less, (Loads{{{5, 2, 1, 1}}, {{1, 5, 1, 1}}}));
  EXPECT_DOUBLE_EQ(dropped, 3.0 / 20);
}

cost::ModelShape routed_model() {
  cost::ModelShape model = gpt_175b();
  model.layers = 4;
  model.experts = 4;
  model.top_k = 1;
  model.expert_ffn = model.ffn;
  model.dense_layers = 2;
  return model;
}

// One stage does one pass after another: a step takes what balanced routing takes, and for each routed block and
// micro-batch what the busiest rank has beyond the mean.
TEST(Skew, AStepTakesTheSlowestRankOfEveryMicroBatchAndLayer) {
  const cost::ModelShape model = routed_model();
  const cost::Machine machine = round_machine();
  const cost::Practice practice;
  cost::Layout layout = layout_of(4, 1, 1, 12, 1);  // three micro-batches
  layout.expert = 4;
  const double even = cost::step_time(model, layout, machine, practice).seconds;
  cost::Routing routing;
  routing.busiest = {{1.5, 2.0}, {1.0, 1.25}, {3.0, 1.0}};
  const auto block = [&](double busiest) {
    const cost::BlockSeconds seconds = cost::block_seconds(model, layout, machine, practice, true, busiest);
    return seconds.forward.total() + seconds.backward.total();
  };
  double more = 0;
  for (const std::vector<double>& layers : routing.busiest) {
    for (const double busiest : layers) {
      more += block(busiest) - block(1);
    }
  }
  const cost::StepTime uneven = cost::step_time(model, layout, machine, practice, routing);
  EXPECT_NEAR(uneven.seconds, even + more, 1e-9 * even);
  EXPECT_NEAR(uneven.uneven, more, 1e-6 * more);
  EXPECT_LE(cost::step_bound(model, layout, machine, practice, routing), uneven.seconds);
  EXPECT_NEAR(cost::step_bound(model, layout, machine, practice, routing), uneven.seconds, 1e-6 * uneven.seconds);
}

// Of stages that wait for each other the slow micro-batch counts where it is, not in the mean.
TEST(Skew, StagesWaitForASlowMicroBatch) {
  cost::ModelShape model = routed_model();
  model.dense_layers = 0;  // both stages have experts
  const cost::Machine machine = round_machine();
  cost::Layout layout = layout_of(8, 1, 2, 16, 1);
  layout.expert = 4;
  cost::Routing one_slow, mean;
  one_slow.busiest = {{1, 1}, {4, 4}, {1, 1}, {1, 1}};
  mean.busiest = {{1.75, 1.75}};
  const cost::StepTime slow = cost::step_time(model, layout, machine, {}, one_slow);
  EXPECT_GT(slow.seconds, cost::step_time(model, layout, machine, {}).seconds);
  EXPECT_LE(cost::step_bound(model, layout, machine, {}, one_slow), slow.seconds);
  EXPECT_NE(slow.seconds, cost::step_time(model, layout, machine, {}, mean).seconds);
}

TEST(Skew, QuantilesAreThoseOfDrawnSteps) {
  const cost::ModelShape model = routed_model();
  const cost::Machine machine = round_machine();
  cost::Layout layout = layout_of(4, 1, 1, 4, 1);  // one micro-batch: a step is one of two
  layout.expert = 4;
  cost::Routing routing;
  routing.busiest = {{1, 1}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, {2, 2}};
  const auto of = [&](std::vector<double> busiest) {
    cost::Routing alone;
    alone.busiest = {std::move(busiest)};
    return cost::step_time(model, layout, machine, {}, alone).seconds;
  };
  const cost::StepQuantiles found =
      cost::step_quantiles(model, layout, machine, {}, routing, cost::StepClock(layout, true));
  EXPECT_DOUBLE_EQ(found.p50, of({1, 1}));
  EXPECT_DOUBLE_EQ(found.p99, of({2, 2}));
  EXPECT_NEAR(found.mean, 0.9 * of({1, 1}) + 0.1 * of({2, 2}), 0.08 * (of({2, 2}) - of({1, 1})));
}

}  // namespace
}  // namespace orthant::cost_test
