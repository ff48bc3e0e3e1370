// Monotone curves and speed-ups of curves that are known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/error.h>

#include <cmath>

#include "bench/fit/speed_up.h"
#include "tests/fit/simulated.h"

namespace orthant::speed_up_test {
namespace {

// loss = 2 + 5 / sqrt(speed * step), every 50 steps up to 1000.
RunCurve toy(double speed, double noise = 0, std::uint64_t seed = 1, double of_seed = 0) {
  test::Normal normal(seed);
  const double shift = of_seed * normal();
  RunCurve run;
  for (int i = 1; i <= 20; ++i) {
    const double step = 50 * i;
    run.points.push_back({step, (2 + 5 / std::sqrt(speed * step)) * std::exp(shift + noise * normal())});
  }
  return run;
}

TEST(MonotoneCurve, FollowsASmoothCurve) {
  const RunCurve run = toy(1);
  const MonotoneCurve curve(run.points);
  for (const CurvePoint& point : run.points) {
    EXPECT_NEAR(curve.loss(point.step) / point.loss, 1, 2e-3) << point.step;
  }
  EXPECT_NEAR(*curve.step_where(2.2), 625, 5);  // 5 / sqrt(step) = 0.2
  EXPECT_FALSE(curve.step_where(2.1).has_value());
  EXPECT_TRUE(curve.begins_below(3));
  EXPECT_FALSE(curve.begins_below(2.5));
}

TEST(MonotoneCurve, NeverRisesAndKnowsItsNoise) {
  const RunCurve run = toy(1, 0.01, 3);
  const MonotoneCurve curve(run.points);
  double before = curve.loss(50);
  for (double step = 60; step <= 1000; step += 10) {
    EXPECT_LE(curve.loss(step), before + 1e-12);
    before = curve.loss(step);
  }
  double square = 0;
  int count = 0;
  for (int seed = 0; seed < 20; ++seed) {
    const MonotoneCurve noisy(toy(1, 0.01, 10 + seed).points);
    for (const double r : noisy.residuals()) {
      square += r * r;
      ++count;
    }
  }
  EXPECT_NEAR(std::sqrt(square / count), 0.01, 0.002);
}

TEST(MonotoneCurve, PoolsARiseIntoItsMean) {
  const std::vector<CurvePoint> points{{0, 9}, {1, 4}, {2, 2}, {4, 3}};  // five and fewer: no smoothing
  const MonotoneCurve curve(points);
  EXPECT_NEAR(curve.loss(2), std::sqrt(6.0), 1e-12);
  EXPECT_NEAR(curve.loss(4), std::sqrt(6.0), 1e-12);
  EXPECT_TRUE(curve.residuals().empty());
}

TEST(MonotoneCurve, RefusesWhatIsNoCurve) {
  const auto of = [](std::vector<CurvePoint> points) { return MonotoneCurve(points); };
  EXPECT_THROW(of({{0, 3}, {1, 2}}), Error);
  EXPECT_THROW(of({{1, 3}, {1, 2}}), Error);
  EXPECT_THROW(of({{2, 3}, {1, 2}}), Error);
  EXPECT_THROW(of({{1, 3}, {2, 0}}), Error);
  EXPECT_THROW(of({{1, 3}, {2, std::nan("")}}), Error);
}

TEST(SpeedUp, OfAModelTwiceAsFastIsTwo) {
  const std::vector<RunCurve> model{toy(2)}, twin{toy(1)};
  const SpeedUp s = speed_up(model, twin, {}, {.resamples = 200});
  EXPECT_NEAR(*s.reached_step, 500, 5);
  EXPECT_NEAR(*s.steps, 2, 0.02);
  EXPECT_TRUE(s.steps_interval.contains(2));
  EXPECT_EQ(s.resampled, Resampled::residuals);
  EXPECT_FALSE(s.seconds.has_value());
  EXPECT_NEAR(s.target_loss, 2 + 5 / std::sqrt(1000.0), 1e-12);
}

TEST(SpeedUp, InSecondsAStepOfMoreTimeCountsAgainstIt) {
  std::vector<RunCurve> model{toy(4), toy(4)}, twin{toy(1)};
  model[0].seconds_per_step = model[1].seconds_per_step = 0.3;
  twin[0].seconds_per_step = 0.2;
  const SpeedUp s = speed_up(model, twin, {}, {.resamples = 100});
  EXPECT_NEAR(*s.steps, 4, 0.04);
  EXPECT_NEAR(*s.seconds, 4 * 0.2 / 0.3, 0.03);
  EXPECT_NEAR(*s.seconds_interval.high, *s.steps_interval.high * 0.2 / 0.3, 1e-9);
}

TEST(SpeedUp, ThatIsNotReachedIsOpenBelow) {
  const std::vector<RunCurve> model{toy(0.5, 0.001)}, twin{toy(1, 0.001, 2)};
  const SpeedUp s = speed_up(model, twin, {}, {.resamples = 200});
  EXPECT_FALSE(s.reached_step.has_value());
  EXPECT_FALSE(s.steps.has_value());
  EXPECT_FALSE(s.steps_interval.low.has_value());
  ASSERT_TRUE(s.steps_interval.high.has_value());
  EXPECT_NEAR(*s.steps_interval.high, 1, 1e-12);  // slower than the twin, and nobody knows how much
}

TEST(SpeedUp, BeforeTheFirstEvaluationIsOpenAbove) {
  const std::vector<RunCurve> model{toy(100, 0.001)}, twin{toy(1, 0.001, 2)};
  const SpeedUp s = speed_up(model, twin, {}, {.resamples = 200});
  EXPECT_FALSE(s.steps_interval.high.has_value());
}

// Studies of three points with three seeds: their spread is known from six numbers. 95 % of 100, as elsewhere.
TEST(SpeedUp, KnownSpeedUpsAreInside95OfHundredIntervals) {
  int inside = 0, inside_one_seed = 0;
  double length = 0;
  for (std::uint64_t study = 0; study < 100; ++study) {
    const auto seeds = [&](double speed, std::uint64_t from, int count) {
      std::vector<RunCurve> runs;
      for (int s = 0; s < count; ++s) {
        runs.push_back(toy(speed, 0.0005, 100 * study + from + static_cast<std::uint64_t>(s), 0.003));
      }
      return runs;
    };
    const auto model = seeds(2, 0, 3), twin = seeds(1, 10, 3), other = seeds(1.5, 20, 3);
    SeedSpread spread;
    for (const auto* runs : {&model, &twin, &other}) {
      spread.add(*runs);
    }
    EXPECT_EQ(spread.degrees_of_freedom, 6);
    const SpeedUp s = speed_up(model, twin, spread, {.resamples = 200});
    EXPECT_EQ(s.resampled, Resampled::seeds);
    inside += s.steps_interval.contains(2) ? 1 : 0;
    length += *s.steps_interval.high - *s.steps_interval.low;
    const SpeedUp one = speed_up(std::span(model).first(1), twin, spread, {.resamples = 200});
    EXPECT_EQ(one.resampled, Resampled::seeds_elsewhere);
    inside_one_seed += one.steps_interval.contains(2) ? 1 : 0;
  }
  EXPECT_GE(inside, 89);
  EXPECT_GE(inside_one_seed, 89);
  // A seed moves ln loss by 0.003, the curve falls by 0.037 of it for each e-fold of steps: 0.6 in all.
  EXPECT_NEAR(length / 100, 0.6, 0.1);
}

TEST(SpeedUp, RefusesSeedsThatWereEvaluatedElsewhere) {
  std::vector<RunCurve> model{toy(2), toy(2)};
  model[1].points.pop_back();
  const std::vector<RunCurve> twin{toy(1)};
  EXPECT_THROW(speed_up(model, twin, {}, {}), Error);
  EXPECT_THROW(speed_up({}, twin, {}, {}), Error);
}

}  // namespace
}  // namespace orthant::speed_up_test
