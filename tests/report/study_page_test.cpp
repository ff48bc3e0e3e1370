// Pages about studies: pictures hold the numbers of study.json and fits.json, and what is missing is not made up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/report/pages.h"
#include "tests/support/error_of.h"

namespace orthant::report_test::study_page_test {
namespace {

using nlohmann::json;
using run_test::ProgramFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

double loss_of(const Json& point) {
  return point["result"]["validation_loss"];
}

TEST(StudyPage, LossesStandAgainstExpertsAndWhatTheyCost) {
  const ProgramFolder folder;
  const Json study = small_study(1);
  const json page = page_of_study(folder, study);
  const Json &twin = study["points"][0], &routed = study["points"][1];
  EXPECT_EQ(series(page, "loss-experts", "small"), json({{1, loss_of(twin)}, {8, loss_of(routed)}}));
  const double seconds = 1000 * routed["result"]["step_seconds"].get<double>();
  EXPECT_EQ(series(page, "loss-seconds", "8 experts"), json({{seconds, loss_of(routed)}}));
  const double flops = routed["tokens"].get<double>() * (routed["flops_per_token"]["model"].get<double>() +
                                                         routed["flops_per_token"]["router"].get<double>());
  EXPECT_EQ(series(page, "loss-flops", "8 experts"), json({{flops, loss_of(routed)}}));
  EXPECT_EQ(series(page, "loss-parameters", "small")[1],
            json({routed["parameters"]["total"].get<double>(), loss_of(routed)}));
  EXPECT_EQ(series(page, "loss-memory", "small")[0], json({twin["result"]["peak_bytes"].get<double>(), loss_of(twin)}));
  const json curve = series(page, "curve-seconds-small", "dense");
  EXPECT_EQ(curve.size(), 17);  // 20 points, without those of the first fifth
  EXPECT_EQ(curve[16][1], loss_of(twin));
  EXPECT_NEAR(series(page, "passes-experts", "small")[1][1].get<double>(),
              routed["result"]["forward_backward_seconds"].get<double>() /
                  twin["result"]["forward_backward_seconds"].get<double>(),
              1e-12);
}

TEST(StudyPage, TheVerdictSaysWhoWins) {
  const ProgramFolder folder;
  Json study = small_study(1);
  study["points"][0]["result"]["validation_loss"] = 2.0;
  study["points"][1]["result"]["validation_loss"] = 1.9;
  page_of_study(folder, study);
  EXPECT_THAT(text_in(folder.path("study/report.html")),
              HasSubstr("8 experts have the lowest loss of the experts tried"));
  study["points"][1]["result"]["validation_loss"] = 2.054;
  page_of_study(folder, study);
  EXPECT_THAT(text_in(folder.path("study/report.html")),
              AllOf(HasSubstr("no number of experts tried beats dense; 8 experts come nearest"), HasSubstr("(+2.7 %)"),
                    Not(HasSubstr("have the lowest loss"))));
}

TEST(StudyPage, WarningsOfThePointsAreAmongTheMethods) {
  const ProgramFolder folder;
  Json study = small_study(1);
  study["warnings"] = {"routers learn < nothing"};
  page_of_study(folder, study);
  EXPECT_THAT(text_in(folder.path("study/report.html")), HasSubstr("Warning: routers learn &lt; nothing."));
}

TEST(StudyPage, SecondsComeBeforeAllOtherCosts) {
  const ProgramFolder folder;
  page_of_study(folder, small_study(1));
  const std::string page = text_in(folder.path("study/report.html"));
  const std::size_t seconds = page.find("<figure id=\"loss-seconds\"");
  ASSERT_NE(seconds, std::string::npos);
  EXPECT_EQ(page.find("<figure"), seconds);
}

// Three seeds at two points: the pooled spread of log losses has four degrees of freedom, t = 2.776.
TEST(StudyPage, IntervalsAreStudentsFromThePooledSpread) {
  const ProgramFolder folder;
  Json study = small_study(3);
  study["points"].push_back(made_up_point({"small", 2, 1}));
  const json points = series(page_of_study(folder, study), "loss-experts", "small");
  double squares = 0, means[2] = {0, 0};
  for (int cell = 0; cell < 2; ++cell) {
    double logs = 0;
    for (int seed = 0; seed < 3; ++seed) {
      logs += std::log(loss_of(study["points"][3 * cell + seed])) / 3;
      means[cell] += loss_of(study["points"][3 * cell + seed]) / 3;
    }
    for (int seed = 0; seed < 3; ++seed) {
      squares += std::pow(std::log(loss_of(study["points"][3 * cell + seed])) - logs, 2);
    }
  }
  const double deviation = std::sqrt(squares / 4), half = means[1] * 2.776 * deviation / std::sqrt(3);
  ASSERT_EQ(points.size(), 3);
  EXPECT_NEAR(points[2][1].get<double>(), means[1], 1e-12);
  EXPECT_NEAR(points[2][2].get<double>(), means[1] - half, 1e-9);
  EXPECT_NEAR(points[2][3].get<double>(), means[1] + half, 1e-9);
  const double one = loss_of(study["points"][6]);
  EXPECT_NEAR(points[1][3].get<double>(), one + one * 2.776 * deviation, 1e-9);  // of one seed: the others' spread
}

TEST(StudyPage, WithoutSeveralSeedsThereAreNoIntervals) {
  const ProgramFolder folder;
  const json page = page_of_study(folder, small_study(1));
  EXPECT_EQ(series(page, "loss-experts", "small")[0].size(), 2);
  EXPECT_THAT(page["text"].get<std::string>(), HasSubstr("there are no intervals"));
}

TEST(StudyPage, FitsStandOverThePointsAndOpenSidesStayOpen) {
  const ProgramFolder folder;
  const Json study = made_up_study(), fits = made_up_fits(study);
  const json page = page_of_study(folder, study, fits);
  const Json& predicted = fits["laws"][0]["predicted"];
  const json law = series(page, "law-1", "large, law");
  EXPECT_EQ(law.size(), 7);
  EXPECT_EQ(law.back()[1], predicted.back()["loss"]);
  double loss = 0;
  for (const Json& point : study["points"]) {
    loss = point["id"] == predicted.back()["id"] ? loss_of(point) : loss;
  }
  EXPECT_NEAR(series(page, "law-1-residuals", "large").back()[1].get<double>(),
              loss / predicted.back()["loss"].get<double>() - 1, 1e-12);
  const json speed_up = series(page, "speed-up-steps", "small");
  EXPECT_EQ(speed_up.back()[0], 64);
  EXPECT_TRUE(speed_up.back()[3].is_null());
  EXPECT_FALSE(speed_up.front()[3].is_null());
  const std::string text = page["text"];
  EXPECT_THAT(text,
              AllOf(HasSubstr("2.50 [2.25, open]"), HasSubstr("[120, open]"), HasSubstr("made up as too few points")));
  EXPECT_TRUE(series(page, "effective-parameters", "small").back()[3].is_null());
}

TEST(StudyPage, OnePointOnSeveralLayoutsIsOneCurveWithItsLargestDifference) {
  const ProgramFolder folder;
  Json study = small_study(1);
  for (const int ranks : {2, 4, 8}) {
    study["points"].push_back(made_up_point({"small", 8, 1, ranks, 0, "ep"}));
  }
  Json& loss = study["points"][4]["result"]["curve"][7][2];
  loss = loss.get<double>() - 0.0125;
  const json page = page_of_study(folder, study);
  EXPECT_EQ(picture(page, "one-curve-1")["series"].size(), 4);
  EXPECT_EQ(series(page, "one-curve-1", "8 ranks (ep)")[7][1], loss);
  EXPECT_THAT(page["figures"]["one-curve-1"].get<std::string>(), HasSubstr("is 0.013 nats"));
  EXPECT_EQ(picture(page, "strong-scaling")["series"].size(), 1);
  EXPECT_FALSE(page["pictures"].contains("weak-scaling-picture"));
}

TEST(StudyPage, WeakScalingFollowsExpertsARank) {
  const ProgramFolder folder;
  Json study = small_study(1);
  for (const int ranks : {2, 4}) {
    study["points"].push_back(made_up_point({"small", 8 * ranks, 1, ranks, 0, "weak"}));
  }
  const json points = series(page_of_study(folder, study), "weak-scaling", "small, 8 experts a rank, top-1");
  ASSERT_EQ(points.size(), 3);
  EXPECT_NEAR(points[2][1].get<double>(),
              study["points"][3]["result"]["step_seconds"].get<double>() /
                  study["points"][1]["result"]["step_seconds"].get<double>(),
              1e-12);
}

TEST(StudyPage, DropsAreMeasuredAndCounterfactual) {
  const ProgramFolder folder;
  const Json study = made_up_study();
  const json page = page_of_study(folder, study);
  json measured = json::array(), counted;
  for (const Json& point : study["points"]) {
    if (point["capacity_factor"] != 0.0) {
      measured.push_back({point["capacity_factor"], point["result"]["drop_rate"]});
      counted = point["result"].value("counterfactual", counted);
    }
  }
  EXPECT_EQ(series(page, "drops-capacity", "small, 8 experts"), measured);
  json found;
  for (const auto& [name, points] : picture(page, "drops-capacity")["series"].items()) {
    found = name.find("counterfactual") != std::string::npos ? points : found;
  }
  EXPECT_EQ(found, counted);
}

TEST(StudyPage, EveryPointHasItsCommandAndFailuresTheirReason) {
  const ProgramFolder folder;
  Json study = made_up_study();
  study["points"][3]["set"].push_back("data.path=it's here");
  const json page = page_of_study(folder, study);
  const std::string text = page["text"];
  EXPECT_THAT(text, HasSubstr("large_e128_k1_g1_r1_s1: rank 0 ended with signal 9 <out of memory?>"));
  EXPECT_THAT(text, HasSubstr("orthant train base.toml --set moe.experts=32 --set run.seed=1 --set model.d_model=256"));
  EXPECT_THAT(text, HasSubstr("--set 'data.path=it'\\''s here'"));
  EXPECT_EQ(page["files"]["base.toml"], study["config_toml"]);
  EXPECT_EQ(page["files"]["study.toml"], study["study_toml"]);
  const std::string points = page["files"]["points.csv"];
  EXPECT_EQ(std::count(points.begin(), points.end(), '\n'), 1 + static_cast<int>(study["points"].size()));
  EXPECT_EQ(page["outside"], json::array());
  EXPECT_EQ(page["twice"], json::array());
}

TEST(StudyPage, MissingNumbersAreMissing) {
  const ProgramFolder folder;
  Json study = small_study(1);
  Json& point = study["points"][1];
  point["result"]["step_seconds"] = nullptr;
  point["result"].erase("peak_bytes");
  point.erase("parameters");
  study.erase("seconds");
  study["machine"] = nullptr;
  const json page = page_of_study(folder, study);
  EXPECT_FALSE(picture(page, "loss-seconds")["series"].contains("8 experts"));
  EXPECT_EQ(series(page, "loss-memory", "small").size(), 1);
  EXPECT_EQ(series(page, "loss-parameters", "small").size(), 1);
  EXPECT_EQ(series(page, "loss-experts", "small").size(), 2);
  const std::string text = page["text"];
  EXPECT_THAT(text, AllOf(HasSubstr("wall timemissing"), HasSubstr("The time of a step is missing"),
                          HasSubstr("There is no fits.json yet")));
}

// A study that has only been written down.
TEST(StudyPage, AStudyWithoutResultsIsAPage) {
  const ProgramFolder folder;
  Json study = small_study(2);
  for (Json& point : study["points"]) {
    point["status"] = "waiting";
    point["result"] = nullptr;
  }
  EXPECT_TRUE(page_of_study(folder, study)["pictures"].empty());
  study["points"] = Json::array();
  EXPECT_TRUE(page_of_study(folder, study)["pictures"].empty());
}

TEST(StudyPage, ThePictureForAReadmeStandsByItself) {
  const ProgramFolder folder;
  const Json study = small_study(1);
  page_of_study(folder, study);
  const json held = held_by(folder, folder.path("study/study.svg"));
  EXPECT_EQ(held["pictures"]["experts"]["series"]["small"][1][1], loss_of(study["points"][1]));
  EXPECT_EQ(held["pictures"]["seconds"]["series"]["8 experts"].size(), 17);
  EXPECT_EQ(held["outside"], json::array());
  EXPECT_THAT(text_in(folder.path("study/study.svg")), HasSubstr("prefers-color-scheme:dark"));
}

std::string refusal(const std::string& study, const std::string& fits = "") {
  const ProgramFolder folder;
  write_text(folder.path("s/study.json"), study);
  if (!fits.empty()) {
    write_text(folder.path("s/fits.json"), fits);
  }
  return test::error_of<ConfigError>([&] { write_study_report(folder.path("s")); });
}

TEST(StudyPage, WhatCannotBeUnderstoodIsRefusedByFileAndReason) {
  EXPECT_THAT(refusal("{"), HasSubstr("study.json: not valid JSON"));
  EXPECT_LT(refusal("{\"a\": \"" + std::string(100000, 'x')).size(), 1000u) << "what was read is not quoted whole";
  EXPECT_THAT(refusal("{}"), HasSubstr("study.json: 'format' must be 1, found none"));
  EXPECT_THAT(refusal(R"({"format":1,"points":[{}]})"), HasSubstr("study.json: point 1: 'id' is missing"));
  EXPECT_THAT(refusal(R"({"format":1,"points":[{"id":"a"},{"id":"a"}]})"), HasSubstr("'a' is the id of two points"));
  EXPECT_THAT(refusal(R"({"format":1,"points":[{"id":"a","experts":"8"}]})"),
              HasSubstr("point 1 ('a'): 'experts': expected a number, found string"));
  EXPECT_THAT(refusal(R"({"format":1,"points":[{"id":"a","experts":2.5}]})"),
              HasSubstr("'experts' must be a whole number from 1 on"));
  EXPECT_THAT(refusal(R"({"format":1,"points":[{"id":"a","ranks":0}]})"),
              HasSubstr("'ranks' must be a whole number from 1 on"));
  EXPECT_THAT(refusal(R"({"format":1,"points":[{"id":"a","status":"done","result":{"curve":[[1,2]]}}]})"),
              HasSubstr("'curve': expected lists of 3 numbers"));
  EXPECT_THAT(refusal(R"({"format":1,"points":[]})", R"({"laws":{}})"), HasSubstr("fits.json: 'laws' must be a list"));
  const ProgramFolder folder;
  EXPECT_THAT(test::error_of<ConfigError>([&] { write_study_report(folder.path("none")); }),
              HasSubstr("study.json' is missing"));
}

TEST(StudyPage, TheProgramKnowsAStudysFolder) {
  const ProgramFolder folder;
  write_study(folder.path("s"), small_study(1));
  const run_test::Result result = folder.orthant({"report", "s"});
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(result.output, "s/report.html\ns/study.svg\n");
  EXPECT_EQ(folder.orthant({"report", "s", "s"}).code, 78);
  EXPECT_EQ(folder.orthant({"report", "s", "-o", "x.html"}).code, 78);
}

}  // namespace
}  // namespace orthant::report_test::study_page_test
