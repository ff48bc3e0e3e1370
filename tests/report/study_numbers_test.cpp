// What a study's page says of times, experts, laws and differences: numbers that agree with each other and with the
// card.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <regex>

#include "apps/report/plot.h"
#include "tests/report/pages.h"

namespace orthant::report_test::study_numbers_test {
namespace {

using nlohmann::json;
using run_test::ProgramFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string text_of(const json& page) {
  return page["text"];
}

TEST(StudyNumbers, ThePartsOfAStepAreNoLongerThanTheStep) {
  const ProgramFolder folder;
  Json study = small_study();
  Json& result = study["points"][1]["result"];
  result["step_seconds"] = 0.09;
  result["forward_backward_seconds"] = 0.098;  // of other steps, on a busier machine
  result["parts"] = {{"products at full rate", 0.06}, {"other", 0.03}, {"optimizer", 0.01}};
  const json page = page_of_study(folder, study);
  EXPECT_THAT(text_of(page), AllOf(HasSubstr("90 ms"), HasSubstr("81 ms"), Not(HasSubstr("98 ms"))));
  double sum = 0;
  for (const json& part : picture(page, "step-small")["bars"]["8 experts"]) {
    sum += part.get<double>();
  }
  EXPECT_NEAR(sum, 0.09, 1e-9);
}

TEST(StudyNumbers, TimesHaveTheRangeOfTheirRounds) {
  const ProgramFolder folder;
  Json study = small_study();
  study["points"][0]["result"]["step_seconds"] = 0.1;
  study["points"][0]["result"]["step_seconds_of_rounds"] = {0.1, 0.1, 0.2};
  study["points"][1]["result"]["step_seconds"] = 0.117;
  study["points"][1]["result"]["step_seconds_of_rounds"] = {0.104, 0.117, 0.253};
  const json page = page_of_study(folder, study);
  EXPECT_THAT(text_of(page), AllOf(HasSubstr("117 ms [104, 253]"), HasSubstr("1.17 times as long (1.04 to 1.2")));
  const json ratio = series(page, "step-experts", "small")[1];
  EXPECT_NEAR(ratio[1].get<double>(), 1.17, 1e-9);
  EXPECT_NEAR(ratio[2].get<double>(), 1.04, 1e-9);
  EXPECT_NEAR(ratio[3].get<double>(), 1.265, 1e-9);
}

TEST(StudyNumbers, TheMethodsAreThoseOfAStudyOfExperts) {
  const ProgramFolder folder;
  Json study = small_study();
  study["points"].push_back(made_up_point({"small", 16, 1}));
  study["config_toml"] =
      "[model]\nd_ff = 192\n[moe]\nexperts = 0\nrouter = \"switch\"\naux_loss = 0.02\nz_loss = 0.5\n";
  EXPECT_THAT(text_of(page_of_study(folder, study)),
              AllOf(Not(HasSubstr("It is dense")), HasSubstr("has 8, 16 experts of width 192 / (top-k x granularity)"),
                    HasSubstr("the gate \"switch\""), HasSubstr("The balance loss has coefficient 0.02"),
                    HasSubstr("z loss 0.5")));
}

TEST(StudyNumbers, OneRankSendsNothing) {
  const ProgramFolder folder;
  Json study = small_study();
  const json alone = page_of_study(folder, study);
  const std::string points = alone["files"]["points.csv"];
  EXPECT_THAT(points, testing::Not(HasSubstr("," + study["points"][1]["dispatch_bytes_per_token"].dump() + ",")));
  EXPECT_FALSE(alone["pictures"].contains("bytes-experts-picture"));
  for (Json& point : study["points"]) {
    point["ranks"] = 2;
  }
  EXPECT_EQ(series(page_of_study(folder, study), "bytes-experts", "small")[1][1],
            study["points"][1]["dispatch_bytes_per_token"]);
}

TEST(StudyNumbers, ACoefficientThatNothingBoundsIsNotIdentified) {
  const ProgramFolder folder;
  const Json study = made_up_study();
  Json fits = made_up_fits(study);
  fits["laws"][0]["coefficients"][1] = {{"name", "E_max"}, {"value", 16}, {"low", nullptr}, {"high", nullptr}};
  EXPECT_THAT(text_of(page_of_study(folder, study, fits)),
              AllOf(HasSubstr("E_maxnot identified"), Not(HasSubstr("[open, open]"))));
}

TEST(StudyNumbers, ALawIsDrawnAsItsCurve) {
  const ProgramFolder folder;
  const Json study = made_up_study();
  Json fits = made_up_fits(study);
  json curve = json::array();
  for (int i = 0; i <= 48; ++i) {
    const double experts = std::pow(64, i / 48.0);
    curve.push_back({experts, 3 - 0.1 * std::log(experts)});
  }
  fits["laws"][0]["curves"] = {{{"size", "large"}, {"points", curve}}};
  const json page = page_of_study(folder, study, fits);
  EXPECT_EQ(series(page, "law-1", "large, law"), curve);
  EXPECT_EQ(series(page, "law-1", "medium, law").size(), 7);
}

TEST(StudyNumbers, CurvesHaveABandOfTheirSeeds) {
  const ProgramFolder folder;
  const Json study = small_study(3);
  const json last = series(page_of_study(folder, study), "curve-steps-small", "8 experts").back();
  std::vector<double> losses;
  for (int seed = 3; seed < 6; ++seed) {
    losses.push_back(study["points"][static_cast<std::size_t>(seed)]["result"]["validation_loss"]);
  }
  EXPECT_EQ(last[2], *std::min_element(losses.begin(), losses.end()));
  EXPECT_EQ(last[3], *std::max_element(losses.begin(), losses.end()));
  EXPECT_THAT(text_in(folder.path("study/report.html")), HasSubstr("class=\"band\""));
}

// Seeds that both points have see the same batches: what they have in common is no noise of the difference.
TEST(StudyNumbers, ADifferenceHasAnIntervalOfItsOwnSeedBySeed) {
  const ProgramFolder folder;
  Json study = small_study(3);
  const double seeds[] = {2.0, 2.1, 2.2}, ratios[] = {0.98, 0.97, 0.975};
  double mean = 0, squares = 0;
  for (int i = 0; i < 3; ++i) {
    study["points"][static_cast<std::size_t>(i)]["result"]["validation_loss"] = seeds[i];
    study["points"][static_cast<std::size_t>(3 + i)]["result"]["validation_loss"] = seeds[i] * ratios[i];
    mean += std::log(ratios[i]) / 3;
  }
  for (const double ratio : ratios) {
    squares += std::pow(std::log(ratio) - mean, 2);
  }
  const double half = 4.303 * std::sqrt(squares / 2 / 3);  // Student's t of two degrees of freedom
  EXPECT_THAT(text_of(page_of_study(folder, study)),
              HasSubstr(fmt::format("the difference is {:+.1f} % [{:+.1f} %, {:+.1f} %], seed by seed (2 degrees",
                                    100 * (std::exp(mean) - 1), 100 * (std::exp(mean - half) - 1),
                                    100 * (std::exp(mean + half) - 1))));
}

TEST(StudyNumbers, OfSeveralLearningRatesTheBestStandsForAPoint) {
  const ProgramFolder folder;
  Json study = small_study();
  for (const double factor : {0.5, 2.0}) {
    Json point = made_up_point({"small", 8, 1});
    point["id"] = fmt::format("small_e8_lr{}_s1", factor);
    point["lr_factor"] = factor;
    point["result"]["validation_loss"] = factor < 1 ? 1.5 : 3.5;
    study["points"].push_back(point);
  }
  const json page = page_of_study(folder, study);
  EXPECT_EQ(series(page, "loss-experts", "small")[1], json({8, 1.5}));
  const json rates = series(page, "loss-rate-small", "8 experts");
  ASSERT_EQ(rates.size(), 3);
  EXPECT_EQ(rates[0], json({0.5, 1.5}));
  EXPECT_EQ(rates[2], json({2, 3.5}));
}

// The numbers of an attribute of all elements of a picture.
std::vector<double> numbers(const std::string& svg, const std::string& pattern) {
  std::vector<double> found;
  const std::regex wanted(pattern);
  for (std::sregex_iterator it(svg.begin(), svg.end(), wanted), end; it != end; ++it) {
    found.push_back(std::stod((*it)[1]));
  }
  return found;
}

TEST(StudyNumbers, MarksBesideTheirPlaceStayInTheFrameAndLogarithmicAxesSaySo) {
  report::Plot plot;
  plot.x = {.label = "experts", .kind = report::ScaleKind::logarithmic, .ticks = {4, 64}};
  plot.y = {.label = "loss"};
  for (const double shift : {-14.0, 0.0, 14.0}) {
    plot.series.push_back({.name = fmt::format("{}", shift),
                           .points = {{4, 2}, {64, 1}},
                           .colour = "c0",
                           .marker = report::Marker::circle,
                           .legend = false,
                           .shift = shift});
  }
  const std::string svg = report::svg(plot, "p");
  const std::vector<double> marks = numbers(svg, "cx=\"([-0-9.]+)\"");
  ASSERT_EQ(marks.size(), 6u);
  EXPECT_GE(*std::min_element(marks.begin(), marks.end()), numbers(svg, "class=\"axis\" d=\"M([0-9.]+) ").at(0) + 3);
  EXPECT_LE(*std::max_element(marks.begin(), marks.end()), numbers(svg, "class=\"axis\"[^>]*H([0-9.]+)").at(0) - 3);
  EXPECT_THAT(svg, AllOf(HasSubstr(">experts, log scale<"), HasSubstr(">loss<")));
}

}  // namespace
}  // namespace orthant::report_test::study_numbers_test
