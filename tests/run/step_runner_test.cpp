// When the next step begins: behind this one, unless somebody looks at what this one leaves.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "core/run/step_runner.h"
#include "tests/support/experiment.h"

namespace orthant::step_runner_test {
namespace {

struct Seen {
  std::vector<std::int64_t> began;
  std::vector<bool> idle;
  std::vector<double> losses;
};

Seen run(const std::string& device, std::int64_t looked_at) {
  const Config config = test::experiment({"run.steps=4", "run.device=\"" + device + "\""});
  test::OneRank rank(config);
  Seen seen;
  StepRunner runner(rank->trainer(), rank->session().plan().device(), rank->stream(), config.settings,
                    {.before = [&](std::int64_t step) { seen.began.push_back(step); },
                     .measures = [](std::int64_t) { return false; },
                     .looks_after = [&](std::int64_t step) { return step == looked_at; }});
  for (std::int64_t step = 0; step < 4; ++step) {
    seen.losses.push_back(runner.next(step).report.loss);
    seen.idle.push_back(runner.idle());
  }
  return seen;
}

TEST(StepRunner, BeginsTheNextStepUnlessSomebodyLooks) {
  const Seen late = run("late", 1), waiting = run("cpu", 1);
  EXPECT_EQ(late.idle, (std::vector<bool>{false, true, false, true}));
  EXPECT_EQ(waiting.idle, (std::vector<bool>{true, true, true, true}));
  EXPECT_EQ(late.began, (std::vector<std::int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(late.losses, waiting.losses);
}

// What hinders the next step is thrown by the next call; until then nobody may take the weights for this step's.
TEST(StepRunner, IsNotIdleBehindAStepThatCouldNotBegin) {
  const Config config = test::experiment({"run.steps=4", "run.device=\"late\""});
  test::OneRank rank(config);
  StepRunner runner(rank->trainer(), rank->session().plan().device(), rank->stream(), config.settings,
                    {.before = [](std::int64_t step) { require(step == 0, "no batch"); },
                     .measures = [](std::int64_t) { return false; },
                     .looks_after = [](std::int64_t) { return false; }});
  EXPECT_GT(runner.next(0).report.loss, 0);
  EXPECT_FALSE(runner.idle());
  EXPECT_THROW(runner.next(1), Error);
}

class SlowSource final : public test::ChangedSource {
 public:
  using ChangedSource::ChangedSource;
  HostBatch train(std::int64_t step, std::int64_t first, std::int64_t count) const override {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return ChangedSource::train(step, first, count);
  }
};

// Every step, the last too, takes the host's 200 ms: its device is done long before (seen on an H200, whose last step
// was told at 7 times the rate of the others).
TEST(StepRunner, AStepTakesNoLessThanTheHostDoesForIt) {
  const Config config = test::experiment({"run.steps=4", "run.device=\"late\""});
  const SlowSource source(config.settings);
  test::OneRank rank(config, &source);
  StepRunner runner(rank->trainer(), rank->session().plan().device(), rank->stream(), config.settings,
                    {.before = [](std::int64_t) {},
                     .measures = [](std::int64_t) { return false; },
                     .looks_after = [](std::int64_t) { return false; }});
  for (std::int64_t step = 0; step < 4; ++step) {
    EXPECT_GE(runner.next(step).seconds, 0.19) << "step " << step;
  }
}

}  // namespace
}  // namespace orthant::step_runner_test
