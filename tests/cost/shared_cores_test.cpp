// Ranks that share cores: the clock against steps that the test plays by hand, and a step's time against its work over
// the cores.
#include "apps/cost/shared_cores.h"

#include <gtest/gtest.h>

#include "apps/cost/step_time.h"
#include "tests/cost/shapes.h"

namespace orthant::cost_test {
namespace {

using cost::Cores;

TEST(SharedCores, SlowdownIsRanksOverCores) {
  const Cores cores{.count = 2, .together = 0.8};
  EXPECT_DOUBLE_EQ(cost::slowdown(cores, 1), 1);
  EXPECT_DOUBLE_EQ(cost::slowdown(cores, 2), 1 / 0.8);
  EXPECT_DOUBLE_EQ(cost::slowdown(cores, 6), 3 / 0.8);
  EXPECT_DOUBLE_EQ(cost::slowdown({.count = 5, .together = 0.6}, 3), 1 / 0.8);  // half of the way
  EXPECT_DOUBLE_EQ(cost::slowdown({}, 64), 1);                                  // devices of their own
}

cost::PieceDurations even(int pieces, double forward, double backward) {
  return {std::vector<double>(static_cast<std::size_t>(pieces), forward),
          std::vector<double>(static_cast<std::size_t>(pieces), backward),
          {}};
}

TEST(SharedCores, EnoughCoresGiveTheUsualClock) {
  const Cores many{.count = 64, .together = 1};
  for (const int stages : {1, 2, 4}) {
    for (const cost::PipelineProgram& program :
         {cost::gpipe(stages, 6), cost::one_forward_one_backward(stages, 6), cost::interleaved(stages, 2, 8)}) {
      cost::PieceDurations durations = even(program.stages * program.chunks, 2, 5);
      durations[0][0] = 3;  // not all alike
      const cost::ClockResult usual = cost::run_clock(program, durations, 0.25),
                              shared = cost::run_shared_clock(program, durations, 0.25, 1, many);
      EXPECT_NEAR(shared.seconds, usual.seconds, 1e-9) << stages;
      EXPECT_EQ(shared.kept, usual.kept);
      for (std::size_t stage = 0; stage < usual.busy.size(); ++stage) {
        EXPECT_NEAR(shared.busy[stage], usual.busy[stage], 1e-9);
      }
    }
  }
}

// On one core nothing is gained or lost by order: all work is done one piece after another.
TEST(SharedCores, OneCoreDoesAllWorkInTurn) {
  const Cores one{.count = 1, .together = 1};
  for (const int stages : {2, 3, 5}) {
    const cost::ClockResult result =
        cost::run_shared_clock(cost::one_forward_one_backward(stages, 7), even(stages, 2, 3), 0, 1, one);
    EXPECT_NEAR(result.seconds, stages * 7 * (2 + 3), 1e-9);
  }
}

// Two stages of two ranks on two cores, two micro-batches, forward 1 s, backward 2 s, GPipe. While one stage works, its
// two ranks have both cores; while both do, each takes twice as long.
TEST(SharedCores, StagesTakeTurnsWithTheirRanks) {
  const Cores two{.count = 2, .together = 1};
  // 0-1 first stage's F0; 1-3 both stages: F1 and F0; 3-4 second stage F1; 4-6 its B; 6-10 both: its B1 and B0; 10-12
  // B1.
  const cost::ClockResult result = cost::run_shared_clock(cost::gpipe(2, 2), even(2, 1, 2), 0, 2, two);
  EXPECT_NEAR(result.seconds, 12, 1e-9);
  EXPECT_NEAR(result.busy[0], 1 + 2 + 4 + 2, 1e-9);
  EXPECT_NEAR(result.busy[1], 2 + 1 + 2 + 4, 1e-9);
}

TEST(SharedCores, MessagesLeaveCoresToOthers) {
  const Cores one{.count = 1, .together = 1};
  // A forward each, and its message, then the way back: nothing else can fill the time.
  const cost::ClockResult result = cost::run_shared_clock(cost::gpipe(2, 1), even(2, 1, 1), 0.5, 1, one);
  EXPECT_NEAR(result.seconds, 1 + 0.5 + 1 + 1 + 0.5 + 1, 1e-9);
}

// Free links, no overhead: a step of n ranks that divide the work evenly takes the work of one over the cores.
TEST(SharedCores, AStepIsItsWorkOverTheCores) {
  cost::Machine machine = round_machine();
  machine.links = {{"free", 0, 1e18, 1e-12, false}};
  machine.factors.launch = 1e-15;
  machine.cores = {.count = 2, .together = 0.9};
  machine.practice = cost::Practice{0.5, 1e-3, 1e-12, 0.1};
  cost::ModelShape model = gpt_175b();
  model.layers = 4;
  cost::Layout one = layout_of(1, 1, 1, 16, 2);
  one.overlapped = false;
  one.zero = 1;
  const cost::StepTime alone = cost::step_time(model, one, machine, {});
  const double passes = alone.work.total();
  for (const int ranks : {2, 4, 8}) {
    cost::Layout layout = one;
    layout.ranks = ranks;
    const cost::StepTime time = cost::step_time(model, layout, machine, {});
    EXPECT_NEAR(time.seconds / ((passes + alone.update) / (2 * 0.9)), 1, 1e-6) << ranks;
    EXPECT_NEAR(time.work.total() + time.waiting + time.messages + time.gather + time.uneven + time.gradients +
                    time.update + time.host + time.shared,
                time.seconds, 1e-9 * time.seconds);
  }
}

TEST(SharedCores, PartsOfAPipelinesStepAddUp) {
  cost::Machine machine = round_machine();
  machine.cores = {.count = 2, .together = 0.9};
  machine.practice = cost::Practice{0.5, 1e-3, 1e-3, 0.1};
  cost::ModelShape model = gpt_175b();
  model.layers = 4;
  for (const int pipeline : {1, 2, 4}) {
    for (const int zero : {0, 1, 3}) {
      cost::Layout layout = layout_of(8, 1, pipeline, 16, 1);
      layout.overlapped = false;
      layout.zero = zero;
      const cost::StepTime time = cost::step_time(model, layout, machine, {});
      EXPECT_NEAR(time.work.total() + time.waiting + time.messages + time.gather + time.uneven + time.gradients +
                      time.update + time.host + time.shared,
                  time.seconds, 1e-9 * time.seconds)
          << pipeline << " " << zero;
      EXPECT_GE(time.waiting, -1e-9);
    }
  }
}

}  // namespace
}  // namespace orthant::cost_test
