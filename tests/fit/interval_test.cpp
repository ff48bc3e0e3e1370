// Quantiles and intervals against tables, and sides that stay open.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "bench/fit/interval.h"
#include "tests/fit/simulated.h"

namespace orthant::interval_test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

TEST(Interval, QuantilesStandBetweenOrderStatistics) {
  const std::vector<double> values{1, 2, 4, 8, 16};
  EXPECT_DOUBLE_EQ(quantile(values, 0), 1);
  EXPECT_DOUBLE_EQ(quantile(values, 0.5), 4);
  EXPECT_DOUBLE_EQ(quantile(values, 0.375), 3);
  EXPECT_DOUBLE_EQ(quantile(values, 1), 16);
  EXPECT_DOUBLE_EQ(quantile(std::vector<double>{7}, 0.3), 7);
}

TEST(Interval, NormalQuantilesAreThoseOfTables) {
  EXPECT_NEAR(normal_quantile(0.5), 0, 1e-12);
  EXPECT_NEAR(normal_quantile(0.975), 1.959964, 1e-6);
  EXPECT_NEAR(normal_quantile(0.005), -2.575829, 1e-6);
}

// The normal tail beyond the t quantile of a table.
TEST(Interval, TailsShrinkForFewDegreesOfFreedom) {
  const auto beyond = [](double t) { return 0.5 * std::erfc(t / std::sqrt(2.0)); };
  EXPECT_NEAR(tail_share(0.95, 1e9), 0.025, 1e-6);
  EXPECT_NEAR(tail_share(0.95, 16), beyond(2.1199), 1e-4);
  EXPECT_NEAR(tail_share(0.95, 5), beyond(2.5706), 2e-4);
  EXPECT_NEAR(tail_share(0.90, 10), beyond(1.8125), 1e-4);
}

TEST(Interval, OfManyNormalDrawsIsTheKnownOne) {
  test::Normal normal(1);
  std::vector<double> draws(40000);
  std::generate(draws.begin(), draws.end(), [&] { return 3 + 2 * normal(); });
  const Interval interval = percentile_interval(draws, 0.95, 1e9);
  EXPECT_NEAR(*interval.low, 3 - 2 * 1.96, 0.1);
  EXPECT_NEAR(*interval.high, 3 + 2 * 1.96, 0.1);
  EXPECT_TRUE(interval.contains(3));
  EXPECT_FALSE(interval.contains(8));
}

TEST(Interval, IsOpenWhereTooManyDrawsAreBeyondTheSearch) {
  std::vector<double> draws(1000);
  for (std::size_t i = 0; i < draws.size(); ++i) {
    draws[i] = static_cast<double>(i);
  }
  for (std::size_t i = 0; i < 20; ++i) {
    draws[i] = -infinity;
  }
  EXPECT_TRUE(percentile_interval(draws, 0.95, 1e9).low.has_value());  // 2 % of them
  for (std::size_t i = 0; i < 30; ++i) {
    draws[i] = -infinity;
  }
  const Interval open = percentile_interval(draws, 0.95, 1e9);
  EXPECT_FALSE(open.low.has_value());
  EXPECT_NEAR(*open.high, 974, 1);
  EXPECT_TRUE(open.contains(-1e9));
  EXPECT_FALSE(percentile_interval({}, 0.95, 10).high.has_value());
}

TEST(Interval, DrawsAreUniform) {
  Draws draws(5);
  std::vector<int> counts(7);
  for (int i = 0; i < 70000; ++i) {
    ++counts.at(draws.index(7));
  }
  EXPECT_THAT(counts, testing::Each(testing::AllOf(testing::Gt(9600), testing::Lt(10400))));
}

}  // namespace
}  // namespace orthant::interval_test
