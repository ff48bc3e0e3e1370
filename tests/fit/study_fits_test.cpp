// A whole study: what is fitted, what is left out and why, and the text of fits.json.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/error.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "bench/fit/study_fits.h"
#include "tests/fit/simulated.h"

namespace orthant::study_fits_test {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

// A run whose curve ends at `loss`.
StudyPoint run_of(const std::string& size, double parameters, double experts, std::uint64_t seed, double loss) {
  StudyPoint point{fmt::format("{}_e{}_s{}", size, experts, seed), size, "k1", parameters, experts, seed, 1e6, {}, 0.1};
  for (int i = 1; i <= 10; ++i) {
    point.curve.push_back({100.0 * i, loss * (1 + 0.2 * (10.0 / i - 1))});
  }
  return point;
}

std::vector<StudyPoint> study() {
  std::vector<StudyPoint> points;
  for (const FinalLoss& run : test::simulated_study(test::known_law, {}, 9)) {
    std::uint64_t seed = 1;
    for (const StudyPoint& earlier : points) {
      seed += earlier.size == run.size && earlier.experts == run.experts ? 1 : 0;
    }
    points.push_back(run_of(run.size, run.parameters, run.experts, seed, run.loss));
  }
  return points;
}

const FitOptions few{.bootstrap = {.resamples = 60}};

TEST(StudyFits, HaveLawsSpeedUpsAndEffectiveParameters) {
  const auto points = study();
  const Fits fits = fit_study(points, few);
  ASSERT_EQ(fits.laws.size(), 1u);
  const FittedLaw& law = fits.laws[0];
  EXPECT_EQ(law.name, "routed law (Clark et al., 2022)");
  EXPECT_EQ(law.runs, 22u);
  ASSERT_EQ(law.coefficients.size(), 6u);
  EXPECT_TRUE(law.coefficients[0].interval.contains(test::known_law.a));
  EXPECT_EQ(law.leave_one_size_out.size(), 3u);
  ASSERT_EQ(law.predicted.size(), points.size());
  for (std::size_t i = 0; i < points.size(); ++i) {
    EXPECT_EQ(law.predicted[i].id, points[i].id);
    EXPECT_NEAR(law.predicted[i].loss / points[i].curve.back().loss, 1, 0.015);
  }
  // Five expert counts above 1 at three sizes; a point with three seeds is one.
  EXPECT_EQ(fits.speed_ups.size(), 15u);
  EXPECT_EQ(fits.effective_parameters.size(), 15u);
  for (const PointSpeedUp& s : fits.speed_ups) {
    EXPECT_EQ(s.twin, s.id.substr(0, s.id.find("_e")) + "_e1_s1");
    EXPECT_EQ(s.speed_up.resampled, s.id == "middle_e8_s1" ? Resampled::seeds : Resampled::seeds_elsewhere) << s.id;
  }
  const auto largest = std::find_if(fits.effective_parameters.begin(), fits.effective_parameters.end(),
                                    [](const auto& e) { return e.id == "large_e32_s1"; });
  ASSERT_NE(largest, fits.effective_parameters.end());
  EXPECT_TRUE(largest->interval.contains(test::known_law.effective_parameters(1e7, 32)));
  // Laws of dense models alone have three sizes only.
  ASSERT_EQ(fits.skipped.size(), 2u);
  EXPECT_THAT(fits.skipped[0].why, HasSubstr("five losses at four values or more, found 5 at 3"));
}

TEST(StudyFits, AreWrittenAsJsonWithNullForOpenSides) {
  Fits fits = fit_study(study(), few);
  fits.speed_ups[0].speed_up.steps.reset();
  fits.speed_ups[0].speed_up.steps_interval.low.reset();
  fits.effective_parameters[0].value = std::numeric_limits<double>::infinity();
  const Json json = Json::parse(to_json(fits));
  const Json& law = json.at("laws").at(0);
  EXPECT_EQ(law.at("coefficients").at(0).at("name"), "a");
  EXPECT_EQ(law.at("coefficients").at(0).at("low"), *fits.laws[0].coefficients[0].interval.low);
  EXPECT_EQ(law.at("points"), 22);
  EXPECT_TRUE(law.at("leave_one_size_out").at(0).at("rms_log_error").is_number());
  EXPECT_EQ(law.at("predicted").size(), 22u);
  const Json& speed = json.at("speed_up").at(0);
  EXPECT_TRUE(speed.at("steps").is_null());
  EXPECT_TRUE(speed.at("steps_low").is_null());
  EXPECT_TRUE(speed.at("steps_high").is_number());
  EXPECT_EQ(speed.at("resampled"), "seeds of other points");
  EXPECT_TRUE(json.at("effective_parameters").at(0).at("value").is_null());
  EXPECT_EQ(json.at("skipped").at(0).at("name"), "power law with floor, dense models");
}

TEST(StudyFits, OfTwoPointsHaveASpeedUpAndReasons) {
  const std::vector<StudyPoint> points{run_of("s", 1e6, 1, 1, 3.0), run_of("s", 1e6, 4, 1, 2.8)};
  const Fits fits = fit_study(points, few);
  EXPECT_TRUE(fits.laws.empty());
  ASSERT_EQ(fits.speed_ups.size(), 1u);
  EXPECT_GT(*fits.speed_ups[0].speed_up.steps, 1);
  EXPECT_EQ(fits.speed_ups[0].speed_up.resampled, Resampled::residuals);
  ASSERT_EQ(fits.skipped.size(), 3u);
  EXPECT_THAT(fits.skipped[0].why, HasSubstr("two sizes or more, found 1"));
}

TEST(StudyFits, OfNothingAreEmpty) {
  const Fits fits = fit_study({}, few);
  EXPECT_TRUE(fits.laws.empty() && fits.speed_ups.empty());
  EXPECT_THAT(fits.skipped[0].why, HasSubstr("no run has more than one expert"));
}

TEST(StudyFits, AModelWithoutATwinIsSaid) {
  const std::vector<StudyPoint> points{run_of("s", 1e6, 1, 1, 3.0), run_of("t", 3e6, 4, 1, 2.8)};
  const Fits fits = fit_study(points, few);
  EXPECT_TRUE(fits.speed_ups.empty());
  EXPECT_EQ(fits.skipped.back().name, "speed-up of t_e4_s1");
  EXPECT_EQ(fits.skipped.back().why, "there is no dense twin of size 't'");
}

// Only one size has experts: the coefficients b and c cannot be told apart.
TEST(StudyFits, AGridThatDoesNotDetermineALawIsSaid) {
  std::vector<StudyPoint> points;
  for (const double experts : {1, 2, 4, 8, 16, 32}) {
    points.push_back(run_of("s", 1e6, experts, 1, 3.0 - 0.1 * std::log2(experts)));
  }
  points.push_back(run_of("t", 3e6, 1, 1, 2.8));
  points.push_back(run_of("t", 3e6, 1, 2, 2.81));
  const Fits fits = fit_study(points, few);
  EXPECT_TRUE(fits.laws.empty());
  EXPECT_THAT(fits.skipped[0].why, HasSubstr("do not determine 4 linear coefficients"));
}

TEST(StudyFits, HaveALawForEachVariantWithTheSameTwins) {
  std::vector<StudyPoint> points = study();
  const std::size_t count = points.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (points[i].experts > 1) {
      StudyPoint other = points[i];
      other.id += "_k2";
      other.variant = "k2";
      for (CurvePoint& at : other.curve) {
        at.loss *= 0.98;
      }
      points.push_back(other);
    }
  }
  const Fits fits = fit_study(points, few);
  ASSERT_EQ(fits.laws.size(), 2u);
  EXPECT_EQ(fits.laws[0].name, "routed law (Clark et al., 2022), k1");
  EXPECT_EQ(fits.laws[1].name, "routed law (Clark et al., 2022), k2");
  EXPECT_EQ(fits.laws[1].runs, 22u);
  EXPECT_EQ(fits.speed_ups.size(), 30u);
}

TEST(StudyFits, RefuseRunsWithoutLossOrWithOneIdTwice) {
  std::vector<StudyPoint> points = study();
  points[3].curve.clear();
  EXPECT_THROW(fit_study(points, few), Error);
  points = study();
  points[3].curve[2].loss = std::nan("");
  EXPECT_THROW(fit_study(points, few), Error);
  points = study();
  points[3].id = points[2].id;
  EXPECT_THROW(fit_study(points, few), Error);
}

}  // namespace
}  // namespace orthant::study_fits_test
