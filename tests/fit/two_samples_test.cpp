// Two series: differences that are there are shown, and others are not, also where neighbours are alike.
#include <gtest/gtest.h>

#include <cmath>

#include "bench/fit/two_samples.h"
#include "tests/fit/simulated.h"

namespace orthant::two_samples_test {
namespace {

// Step times around `middle`, each like the one before it.
std::vector<double> series(double middle, std::size_t count, double alike, std::uint64_t seed) {
  test::Normal normal(seed);
  std::vector<double> values;
  double noise = normal();
  for (std::size_t i = 0; i < count; ++i) {
    noise = alike * noise + std::sqrt(1 - alike * alike) * normal();
    values.push_back(middle * std::exp(0.02 * noise));
  }
  return values;
}

TEST(TwoSamples, EqualSeriesShowNoDifference) {
  for (const double alike : {0.0, 0.5}) {
    int shown = 0;
    for (std::uint64_t s = 0; s < 200; ++s) {
      const TwoSamples result =
          compare_medians(series(1, 100, alike, 2 * s), series(1, 100, alike, 2 * s + 1), {.resamples = 300});
      shown += result.verdict == Verdict::none_shown ? 0 : 1;
    }
    EXPECT_LE(shown, alike == 0 ? 20 : 26) << alike;  // 5 % are 10; blocks of ten cover most of what is alike
  }
}

TEST(TwoSamples, ADifferenceOfTwoPercentIsShown) {
  int shown = 0;
  for (std::uint64_t s = 0; s < 50; ++s) {
    const TwoSamples slower =
        compare_medians(series(1, 100, 0, 2 * s), series(1.02, 100, 0, 2 * s + 1), {.resamples = 300});
    shown += slower.verdict == Verdict::higher ? 1 : 0;
    const TwoSamples faster =
        compare_medians(series(1.02, 100, 0, 2 * s + 1), series(1, 100, 0, 2 * s), {.resamples = 300});
    shown += faster.verdict == Verdict::lower ? 1 : 0;
    EXPECT_NEAR(slower.ratio * faster.ratio, 1, 0.02);
  }
  EXPECT_GE(shown, 95);
}

// Losses on the same batches move together: what is left of 2 % of noise is a difference of 0.1 %.
TEST(TwoSamples, PairedMeansSeeThroughCommonNoise) {
  const std::vector<double> before = series(3, 40, 0, 1);
  std::vector<double> after = before;
  const std::vector<double> own = series(1, 40, 0, 2);
  for (std::size_t i = 0; i < after.size(); ++i) {
    after[i] *= 0.999 * std::pow(own[i], 0.01);
  }
  EXPECT_EQ(compare_means(before, after, true, {}).verdict, Verdict::lower);
  EXPECT_EQ(compare_means(before, after, false, {}).verdict, Verdict::none_shown);
  EXPECT_NEAR(compare_means(before, after, true, {}).ratio, 0.999, 1e-4);
}

TEST(TwoSamples, FewNumbersTellNoNoise) {
  const std::vector<double> four{1, 1, 1, 1}, many = series(2, 50, 0, 1);
  const TwoSamples result = compare_medians(four, many, {});
  EXPECT_EQ(result.verdict, Verdict::noise_unknown);
  EXPECT_FALSE(result.interval.low || result.interval.high);
  EXPECT_NEAR(result.ratio, 2, 0.02);
}

}  // namespace
}  // namespace orthant::two_samples_test
