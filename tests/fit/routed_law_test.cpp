// The routed law on studies whose coefficients are known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/error.h>

#include <array>
#include <cmath>

#include "bench/fit/routed_law.h"
#include "tests/fit/simulated.h"

namespace orthant::routed_law_test {
namespace {

using test::known_law;
using test::Noise;
using test::simulated_study;

// How many of the studies have the truth inside: a, b, c, d, E_start, E_max, and the effective parameters of 32
// experts.
struct Coverage {
  std::array<int, 7> inside{};
  std::array<int, 7> inside_half{};  // of the interval's length around the estimate, where both sides are closed
  std::array<int, 7> closed{};
};

Interval halved(const Interval& interval, double value) {
  return interval.low && interval.high
             ? Interval{value - 0.5 * (value - *interval.low), value + 0.5 * (*interval.high - value)}
             : interval;
}

Coverage coverage(const RoutedLaw& law, const Noise& noise, int studies, int resamples) {
  Coverage result;
  const auto effective = [](const RoutedLaw& l) { return l.effective_parameters(3e6, 32); };
  for (int s = 0; s < studies; ++s) {
    const BootstrapOptions options{.resamples = resamples};
    const RoutedLawFit fit = fit_routed_law(simulated_study(law, noise, 1000 + s), options);
    for (std::size_t k = 0; k < 7; ++k) {
      const Interval interval = k < 6 ? fit.intervals[k] : interval_of(fit, options, effective);
      const double truth = k < 6 ? law.values()[k] : effective(law);
      const double estimate = k < 6 ? fit.law.values()[k] : effective(fit.law);
      result.inside[k] += interval.contains(truth) ? 1 : 0;
      result.inside_half[k] += halved(interval, estimate).contains(truth) ? 1 : 0;
      result.closed[k] += interval.low && interval.high ? 1 : 0;
    }
  }
  return result;
}

// Under a coverage of 95 % fewer than 89 of 100 have a chance below 1 %.
TEST(RoutedLaw, PlantedCoefficientsAreInside95OfHundredIntervals) {
  const Coverage c = coverage(known_law, {}, 100, 250);
  EXPECT_THAT(c.inside, testing::Each(testing::Ge(89)));
  // What would not be so with intervals that are too short, or be worth nothing with open ones.
  EXPECT_THAT(std::span(c.inside_half).first(5), testing::Each(testing::Lt(89)));
  EXPECT_THAT(std::span(c.closed).first(5), testing::Each(testing::Ge(99)));
}

// A seed's noise and a point's own, runs of six times the noise: 95 % of 300, less three standard deviations.
TEST(RoutedLaw, SlowCoverageHoldsForOtherLawsAndNoise) {
  const RoutedLaw base{-0.082, -0.108, 0.009, 1.104, 1.847, 314.478};
  const RoutedLaw hash{-0.087, -0.136, 0.012, 1.157, 4.175, 477.741};
  const std::pair<RoutedLaw, Noise> cases[] = {
      {known_law, {0.002, 0.003, 0}}, {known_law, {0.003, 0, 0.1}}, {known_law, {0.01, 0, 0}}, {base, {}}, {hash, {}}};
  for (const auto& [law, noise] : cases) {
    EXPECT_THAT(coverage(law, noise, 300, 300).inside, testing::Each(testing::Ge(274)))
        << law.e_start << " " << law.e_max << " noise " << noise.of_runs << " " << noise.of_points;
  }
}

TEST(RoutedLaw, LossesWithoutNoiseGiveTheLawBack) {
  const RoutedLawFit fit = fit_routed_law(simulated_study(known_law, {0, 0, 0}, 1), {.resamples = 20});
  for (std::size_t k = 0; k < 6; ++k) {
    EXPECT_NEAR(fit.law.values()[k], known_law.values()[k], 1e-4 * std::abs(known_law.values()[k]))
        << RoutedLaw::names[k];
  }
  EXPECT_LT(fit.residual_rms, 1e-6);
}

TEST(RoutedLaw, OneRunFarOffMovesNothing) {
  std::vector<FinalLoss> runs = simulated_study(known_law, {}, 7);
  const BootstrapOptions options{.resamples = 200};
  const RoutedLawFit clean = fit_routed_law(runs, options);
  for (FinalLoss& run : runs) {
    if (run.size == "middle" && run.experts == 4) {
      run.loss *= 1.2;  // 65 times the noise
    }
  }
  const RoutedLawFit fit = fit_routed_law(runs, options);
  for (const FinalLoss& run : runs) {
    EXPECT_NEAR(std::log(fit.law.loss(run.parameters, run.experts) / known_law.loss(run.parameters, run.experts)), 0,
                0.006)
        << run.size << " " << run.experts;
  }
  for (std::size_t k = 0; k < 4; ++k) {
    EXPECT_TRUE(fit.intervals[k].contains(known_law.values()[k])) << RoutedLaw::names[k];
    EXPECT_NEAR(fit.law.values()[k], clean.law.values()[k], 0.5 * (*clean.intervals[k].high - *clean.intervals[k].low))
        << RoutedLaw::names[k];
  }
  EXPECT_GT(fit.residual_rms, 0.03);  // the run is still counted among the residuals
}

TEST(RoutedLaw, EffectiveParametersAreThoseOfTheDenseModelWithThatLoss) {
  const double dense = known_law.effective_parameters(3e6, 16);
  EXPECT_GT(dense, 3e6);
  EXPECT_NEAR(known_law.loss(dense, 1), known_law.loss(3e6, 16), 1e-12);
  EXPECT_NEAR(known_law.effective_parameters(3e6, 1), 3e6, 1);
  EXPECT_TRUE(std::isinf(RoutedLaw({0.01, -0.1, 0, 1, 1, 100}).effective_parameters(1e6, 8)));
}

TEST(RoutedLaw, TheTransformSaturates) {
  const RoutedLaw law{0, 0, 0, 0, 2, 100};
  EXPECT_NEAR(law.saturated(1), 2, 1e-12);
  EXPECT_NEAR(law.saturated(1e12), 100, 1e-6);
  EXPECT_NEAR(law.saturated(10), 9.9430, 1e-4);  // 1/(1/(9 + 2.0408) + 0.01)
}

// A size that does not follow the others' law has the error by which it was moved.
TEST(RoutedLaw, TheErrorOfASizeThatIsLeftOutShowsItsMisfit) {
  std::vector<FinalLoss> runs = simulated_study(known_law, {0, 0, 0}, 1);
  for (FinalLoss& run : runs) {
    run.loss *= run.size == "large" ? 1.05 : 1;
  }
  const RoutedLawFit fit = fit_routed_law(runs, {.resamples = 10});
  ASSERT_EQ(fit.left_out.size(), 3u);
  EXPECT_EQ(fit.left_out[0].size, "large");
  EXPECT_NEAR(fit.left_out[0].rms_log_error, std::log(1.05), 1e-3);
}

TEST(RoutedLaw, TheSameSeedGivesTheSameBits) {
  const auto runs = simulated_study(known_law, {}, 3);
  const RoutedLawFit a = fit_routed_law(runs, {.resamples = 50}), b = fit_routed_law(runs, {.resamples = 50});
  const RoutedLawFit other = fit_routed_law(runs, {.resamples = 50, .seed = 2});
  EXPECT_EQ(a.law.values(), b.law.values());
  EXPECT_EQ(*a.intervals[0].low, *b.intervals[0].low);
  EXPECT_NE(*a.intervals[0].low, *other.intervals[0].low);
}

// Seeds that share their point's error say less than as many points.
TEST(RoutedLaw, SeedsThatShareAnErrorMakeIntervalsLonger) {
  double together = 0, apart = 0;
  for (int s = 0; s < 20; ++s) {
    std::vector<FinalLoss> runs = simulated_study(known_law, {0.0003, 0.003, 0}, 50 + s);
    const auto length = [&] {
      const BootstrapOptions options{.resamples = 200};
      const RoutedLawFit fit = fit_routed_law(runs, options);
      const Interval interval = interval_of(fit, options, [](const RoutedLaw& law) { return law.loss(3e6, 1); });
      return *interval.high - *interval.low;
    };
    together += length();
    for (std::size_t i = 0; i < runs.size(); ++i) {
      runs[i].point = i;
    }
    apart += length();
  }
  EXPECT_GT(together, 1.1 * apart);
}

TEST(RoutedLaw, WhatCannotBeFittedIsSaid) {
  std::vector<FinalLoss> runs = simulated_study(known_law, {}, 1);
  EXPECT_EQ(routed_law_needs(runs), "");
  EXPECT_THAT(routed_law_needs(std::span(runs).first(6)), testing::HasSubstr("two sizes or more, found 1"));
  std::vector<FinalLoss> few;
  for (const FinalLoss& run : runs) {
    if (run.experts <= 4) {
      few.push_back(run);
    }
  }
  EXPECT_THAT(routed_law_needs(few), testing::HasSubstr("four expert counts or more (the dense twin is one), found 3"));
  EXPECT_THROW(fit_routed_law(few, {}), Error);
  std::vector<FinalLoss> equal = runs;
  for (FinalLoss& run : equal) {
    run.loss = 3;
  }
  EXPECT_THAT(routed_law_needs(equal), testing::HasSubstr("all losses are 3"));
  runs[3].loss = std::nan("");
  EXPECT_THROW(fit_routed_law(runs, {}), Error);
}

}  // namespace
}  // namespace orthant::routed_law_test
