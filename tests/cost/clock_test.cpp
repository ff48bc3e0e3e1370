// The clock against closed forms of pipelines, and its programs against those that the pipeline axis executes.
#include "apps/cost/clock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <orthant/error.h>

#include "apps/cost/step_time.h"
#include "plugins/pipeline/schedules.h"
#include "tests/cost/shapes.h"
#include "tests/support/error_of.h"

namespace orthant::cost_test {
namespace {

using cost::Pass;

constexpr double forward_seconds = 1, backward_seconds = 2;

double seconds_of(Pass pass, int, int) {
  return pass == Pass::forward ? forward_seconds : backward_seconds;
}

double bubble(const cost::PipelineProgram& program, double message = 0) {
  const cost::ClockResult result = cost::run_clock(program, seconds_of, message);
  return result.seconds / result.busy.front() - 1;
}

TEST(Clock, BubblesAreThoseOfThePapers) {
  for (const int stages : {2, 4, 8}) {
    for (const int micro_batches : {8, 16, 64}) {
      const double idle = (stages - 1.0) / micro_batches;  // of the work
      EXPECT_NEAR(bubble(cost::one_forward_one_backward(stages, micro_batches)), idle, 1e-9);
      EXPECT_NEAR(bubble(cost::gpipe(stages, micro_batches)), idle, 1e-9);
      for (const int chunks : {2, 4}) {
        EXPECT_NEAR(bubble(cost::interleaved(stages, chunks, micro_batches)), idle / chunks, 1e-9);
      }
    }
  }
}

TEST(Clock, TheShareOfTheStepIsTheTextbooks) {
  const cost::ClockResult result = cost::run_clock(cost::one_forward_one_backward(4, 8), seconds_of, 0);
  EXPECT_NEAR(1 - result.busy[0] / result.seconds, 3.0 / (8 + 3), 1e-9);  // (p - 1) / (m + p - 1)
}

TEST(Clock, ProgramsAreThoseOfTheExecutor) {
  const int stages = 4, micro_batches = 8, chunks = 2;
  const auto same = [&](const cost::PipelineProgram& ours, int pieces, auto passes_of) {
    Programs programs{stages, pieces, micro_batches, {}};
    for (int stage = 0; stage < stages; ++stage) {
      programs.of_stage.push_back(pipeline::with_messages(passes_of(stage), stage, stages, pieces));
    }
    check_programs(programs);
    EXPECT_EQ(cost::program_of(programs).of_stage, ours.of_stage);
    // Both clocks tell the same time.
    EXPECT_EQ(cost::run_clock(ours, seconds_of, 0).seconds, timeline_of(programs, 1, 2).length);
  };
  same(cost::gpipe(stages, micro_batches), 1, [&](int stage) { return pipeline::gpipe(stage, stages, micro_batches); });
  same(cost::one_forward_one_backward(stages, micro_batches), 1,
       [&](int stage) { return pipeline::one_forward_one_backward(stage, stages, micro_batches); });
  same(cost::interleaved(stages, chunks, micro_batches), chunks,
       [&](int stage) { return pipeline::interleaved(stage, stages, chunks, micro_batches); });
}

TEST(Clock, ZeroBubbleFillsGapsWithGradientsOfWeights) {
  const int stages = 4, micro_batches = 12;
  const auto thirds = [](Pass, int, int) { return 1.0; };
  const cost::ClockResult split = cost::run_clock(cost::zero_bubble(stages, micro_batches), thirds, 0);
  const cost::ClockResult whole = cost::run_clock(cost::one_forward_one_backward(stages, micro_batches), seconds_of, 0);
  EXPECT_EQ(split.busy, whole.busy);
  EXPECT_NEAR(whole.seconds - whole.busy[0], (stages - 1) * 3.0, 1e-9);
  EXPECT_NEAR(split.seconds - split.busy[0], (stages - 1) * 1.0, 1e-9);  // (p - 1)(F + B - 2W), Qi et al., table 2
  EXPECT_EQ(split.kept, whole.kept);
}

TEST(Clock, StagesKeepAsManyMicroBatchesAsAreBehindThem) {
  EXPECT_THAT(cost::run_clock(cost::one_forward_one_backward(4, 8), seconds_of, 0).kept,
              testing::ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(cost::run_clock(cost::gpipe(4, 8), seconds_of, 0).kept, testing::ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(cost::run_clock(cost::interleaved(4, 2, 8), seconds_of, 0).kept, testing::ElementsAre(11, 9, 7, 5));
}

TEST(Clock, TheSlowestStageDecides) {
  const auto uneven = [](Pass pass, int piece, int) {
    return (piece == 2 ? 2.0 : 1.0) * (pass == Pass::forward ? 1 : 2);
  };
  const cost::ClockResult result = cost::run_clock(cost::one_forward_one_backward(4, 32), uneven, 0);
  // 32 micro-batches of the slow stage, and what comes before its first pass and after its last one.
  EXPECT_NEAR(result.seconds, 32 * 6 + 2 * 1 + 2 * 2 + 1 + 2 - 0, 3);
  EXPECT_GE(result.seconds, 32 * 6);
}

TEST(Clock, MessagesThatNobodyWaitsForCostNothing) {
  const double short_message = 0.01;
  const int stages = 4, micro_batches = 64;
  const cost::PipelineProgram program = cost::one_forward_one_backward(stages, micro_batches);
  const cost::ClockResult without = cost::run_clock(program, seconds_of, 0);
  const cost::ClockResult with = cost::run_clock(program, seconds_of, short_message);
  EXPECT_GT(with.seconds, without.seconds);
  EXPECT_NEAR(with.seconds - without.seconds, with.critical_messages * short_message, 1e-9);
}

TEST(Clock, TheChainThatDecidesAddsUpToTheTime) {
  const auto uneven = [](Pass pass, int piece, int) { return (pass == Pass::forward ? 1.0 : 2.3) + 0.1 * piece; };
  for (const cost::PipelineProgram& program :
       {cost::one_forward_one_backward(4, 12), cost::interleaved(4, 3, 12), cost::zero_bubble(4, 12)}) {
    const cost::ClockResult result = cost::run_clock(program, uneven, 0.2);
    double sum = result.critical_messages * 0.2;
    for (std::size_t pass = 0; pass < result.critical.size(); ++pass) {
      for (std::size_t piece = 0; piece < result.critical[pass].size(); ++piece) {
        sum += result.critical[pass][piece] * uneven(static_cast<Pass>(pass), static_cast<int>(piece), 0);
      }
    }
    EXPECT_NEAR(sum, result.seconds, 1e-9);
  }
}

TEST(Clock, ProgramsThatWaitForEverAreRefused) {
  cost::PipelineProgram program = cost::one_forward_one_backward(2, 2);
  std::swap(program.of_stage[0].front(), program.of_stage[0].back());  // a backward pass before its forward
  EXPECT_THAT(test::error_of([&] { cost::run_clock(program, seconds_of, 0); }),
              testing::HasSubstr("stage 0 stops before task 0"));
}

// A step's clock plays a few rounds and goes on from there.
TEST(Clock, RoundsThatRepeatAreNotPlayed) {
  const auto uneven = [](Pass pass, int piece, int) {
    return (pass == Pass::forward ? 1.0 : 2.1) * (piece == 3 ? 1.2 : 1);
  };
  for (const int chunks : {1, 2}) {
    for (const double batch : {64.0, 200.0, 1000.0}) {
      cost::Layout layout = layout_of(4, 1, 4, batch, 1);
      layout.chunks = chunks;
      const cost::ClockResult quick = cost::StepClock(layout).run(uneven, 0.1);
      const cost::ClockResult all = cost::StepClock(layout, true).run(uneven, 0.1);
      EXPECT_NEAR(quick.seconds, all.seconds, 1e-9 * all.seconds) << chunks << " " << batch;
      EXPECT_NEAR(quick.busy[3], all.busy[3], 1e-9 * all.busy[3]);
    }
  }
}

}  // namespace
}  // namespace orthant::cost_test
