// Power laws with a floor: planted coefficients, an independent search, and what the data leave open.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/error.h>

#include <array>
#include <cmath>
#include <limits>

#include "bench/fit/power_law.h"
#include "tests/fit/simulated.h"

namespace orthant::power_law_test {
namespace {

const PowerLaw planted{1.7, 40, 0.28};

std::vector<LossAt> losses(const PowerLaw& law, double noise, std::uint64_t seed) {
  test::Normal normal(seed);
  std::vector<LossAt> rows;
  for (std::size_t i = 0; i < 12; ++i) {
    const double x = 1e4 * std::pow(3.0, static_cast<double>(i));
    rows.push_back({x, law.loss(x) * std::exp(noise * normal()), i});
  }
  return rows;
}

TEST(PowerLaw, LossesWithoutNoiseGiveTheLawBack) {
  const PowerLawFit fit = fit_power_law(losses(planted, 0, 1), {.resamples = 20});
  EXPECT_NEAR(fit.law.floor, planted.floor, 1e-5);
  EXPECT_NEAR(fit.law.amplitude, planted.amplitude, 1e-2);
  EXPECT_NEAR(fit.law.exponent, planted.exponent, 1e-5);
  EXPECT_LT(fit.residual_rms, 1e-7);
}

// Under a coverage of 95 % fewer than 89 of 100 have a chance below 1 %.
TEST(PowerLaw, PlantedCoefficientsAreInside95OfHundredIntervals) {
  std::array<int, 3> inside{};
  for (int s = 0; s < 100; ++s) {
    const PowerLawFit fit = fit_power_law(losses(planted, 0.003, 100 + s), {.resamples = 300});
    inside[0] += fit.intervals[0].contains(planted.floor) ? 1 : 0;
    inside[1] += fit.intervals[1].contains(planted.amplitude) ? 1 : 0;
    inside[2] += fit.intervals[2].contains(planted.exponent) ? 1 : 0;
    EXPECT_TRUE(fit.intervals[0].low && fit.intervals[0].high);
    EXPECT_LT(*fit.intervals[0].high - *fit.intervals[0].low, 0.3);
  }
  EXPECT_THAT(inside, testing::Each(testing::Ge(89)));
}

// Least squares of ln loss by a search without derivatives: on clean data Huber's weights are nearly all 1.
TEST(PowerLaw, IsTheBestOfAPlainSearch) {
  std::vector<LossAt> rows = losses(planted, 0.0005, 3);
  const PowerLawFit fit = fit_power_law(rows, {.resamples = 1});
  const auto error = [&](const PowerLaw& law) {
    double sum = 0;
    for (const LossAt& row : rows) {
      const double size = std::abs(std::log(row.loss / law.loss(row.x)));
      const double limit = 1.345 * 0.0005;
      sum += size < limit ? size * size : 2 * limit * size - limit * limit;
    }
    return sum;
  };
  PowerLaw best = planted;
  for (double step = 0.05; step > 1e-7; step *= 0.7) {
    for (int round = 0; round < 300; ++round) {
      bool better = false;
      for (double PowerLaw::*member : {&PowerLaw::floor, &PowerLaw::amplitude, &PowerLaw::exponent}) {
        for (const double factor : {1 + step, 1 - step}) {
          PowerLaw next = best;
          next.*member *= factor;
          if (error(next) < error(best)) {
            best = next;
            better = true;
          }
        }
      }
      if (!better) {
        break;
      }
    }
  }
  // The scale of Huber's rule is estimated in one and known in the other.
  EXPECT_LT(error(fit.law), 1.02 * error(best));
  for (const LossAt& row : rows) {
    EXPECT_NEAR(fit.law.loss(row.x), best.loss(row.x), 0.0005 * row.loss);
  }
}

TEST(PowerLaw, OneLossFarOffMovesNothing) {
  std::vector<LossAt> rows = losses(planted, 0.001, 4);
  rows[5].loss *= 1.15;
  const PowerLawFit fit = fit_power_law(rows, {.resamples = 300});
  EXPECT_TRUE(fit.intervals[0].contains(planted.floor));
  EXPECT_NEAR(fit.law.floor, planted.floor, 0.05);
  for (const LossAt& row : rows) {
    EXPECT_NEAR(std::log(fit.law.loss(row.x) / planted.loss(row.x)), 0, 0.003);
  }
}

TEST(PowerLaw, AFloorThatLossesDoNotShowIsOpen) {
  const PowerLawFit fit = fit_power_law(losses({0.02, 30, 0.08}, 0.003, 5), {.resamples = 300});
  EXPECT_FALSE(fit.intervals[0].low.has_value());
  ASSERT_TRUE(fit.intervals[0].high.has_value());
  EXPECT_GT(*fit.intervals[0].high, 0.02);
}

TEST(PowerLaw, WhatCannotBeFittedIsSaid) {
  const std::vector<LossAt> rows = losses(planted, 0, 1);
  EXPECT_THAT(power_law_needs(std::span(rows).first(4)), testing::HasSubstr("five losses at four values or more"));
  EXPECT_THROW(fit_power_law(std::span(rows).first(4), {}), Error);
  std::vector<LossAt> bad = rows;
  bad[2].x = 0;
  EXPECT_THROW(fit_power_law(bad, {}), Error);
  bad[2] = {1, std::numeric_limits<double>::infinity(), 0};
  EXPECT_THROW(fit_power_law(bad, {}), Error);
}

TEST(ModelDataLaw, PlantedCoefficientsAreInside95OfHundredIntervals) {
  const ModelDataLaw law{1.69, 406.4, 0.34, 410.7, 0.28};  // Hoffmann et al. (2022)
  std::array<int, 5> inside{};
  for (int s = 0; s < 60; ++s) {
    test::Normal normal(300 + s);
    std::vector<LossOfModelAndData> rows;
    for (const double n : {5e7, 1.5e8, 5e8, 1.5e9, 5e9}) {
      for (const double d : {1e9, 4e9, 1.6e10, 6.4e10}) {
        rows.push_back({n, d, law.loss(n, d) * std::exp(0.002 * normal()), rows.size()});
      }
    }
    const ModelDataLawFit fit = fit_model_data_law(rows, {.resamples = 150});
    const std::array<double, 5> truth{law.floor, law.model_amplitude, law.model_exponent, law.data_amplitude,
                                      law.data_exponent};
    for (std::size_t k = 0; k < 5; ++k) {
      inside[k] += fit.intervals[k].contains(truth[k]) ? 1 : 0;
    }
  }
  EXPECT_THAT(inside, testing::Each(testing::Ge(52)));  // of 60, likewise
}

}  // namespace
}  // namespace orthant::power_law_test
