// Pages about runs: every picture holds the numbers of metrics.jsonl, and no input breaks a page.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/report/pages.h"
#include "tests/support/error_of.h"

namespace orthant::report_test::run_page_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using run_test::ProgramFolder;
using ::testing::HasSubstr;

TEST(RunPage, PicturesHoldTheNumbersOfTheRun) {
  const ProgramFolder folder;
  const std::vector<Json> lines = made_up_lines(12, 2, 4, 1);
  write_run(folder.path("a"), lines, made_up_config("a", 2, 4));
  const json page = page_of(folder, {folder.path("a")});
  json by_steps = json::array(), validation = json::array(), by_tokens = json::array(), norms = json::array(),
       speeds = json::array(), entropies = json::array();
  for (const Json& line : lines) {
    by_steps.push_back({line["step"], line["loss"]});
    by_tokens.push_back({line["tokens"], line["loss"]});
    norms.push_back({line["step"], line["grad_norm"]});
    speeds.push_back({line["step"], line["tokens_per_second"]});
    entropies.push_back({line["step"], line["routing"]["1"]["choice_entropy"]});
    if (line.contains("validation_loss")) {
      validation.push_back({line["step"], line["validation_loss"]});
    }
  }
  EXPECT_EQ(series(page, "loss-steps", "a, training"), by_steps);
  EXPECT_EQ(series(page, "loss-steps", "a, validation"), validation);
  EXPECT_EQ(series(page, "loss-tokens", "a, training"), by_tokens);
  EXPECT_EQ(series(page, "grad-norm", "a"), norms);
  EXPECT_EQ(series(page, "tokens-per-second", "a"), speeds);
  EXPECT_EQ(series(page, "entropy-a", "layer 1, choices"), entropies);
  EXPECT_EQ(picture(page, "churn-a")["series"]["layer 0"].size(), 1);  // the second validation is the first with one
  json memory;
  for (const auto& [kind, bytes] : lines.back()["peak_by_kind"].items()) {
    memory.push_back(bytes);
  }
  EXPECT_EQ(picture(page, "memory")["bars"]["a"], memory);
}

// A nat per byte is no nat per token: the unit stands beside each loss, and unlike ones are not ranked.
TEST(RunPage, LossesHaveTheirUnits) {
  const ProgramFolder folder;
  const auto write = [&](const std::string& name, const std::string& data, double bytes) {
    std::vector<Json> lines = made_up_lines(12, 2, 4, 1);
    for (Json& line : lines) {
      if (line.contains("validation_loss")) {
        line["validation_bits_per_byte"] = line["validation_loss"].get<double>() / (std::log(2.0) * bytes);
      }
    }
    write_run(folder.path(name), lines, "[data]\n" + data);
  };
  write("bytes", "source = \"text\"\ntokenizer = \"bytes\"\n", 1);
  write("tokens", "source = \"text\"\ntokenizer = \"t.json\"\n", 4);
  write("pairs", "source = \"pairs\"\ntokenizer = \"bytes\"\n", 1);
  const std::string bytes = page_of(folder, {folder.path("bytes")})["text"];
  EXPECT_THAT(bytes, testing::AllOf(HasSubstr("nats per byte"), testing::Not(HasSubstr("nats per token")),
                                    testing::Not(HasSubstr("pairs of answers")), testing::Not(HasSubstr("ranked"))));
  const json both = page_of(folder, {folder.path("bytes"), folder.path("tokens")});
  EXPECT_THAT(both["text"].get<std::string>(),
              testing::AllOf(HasSubstr("cannot be ranked"), HasSubstr("those of tokens nats per token")));
  EXPECT_EQ(series(both, "bits-per-byte", "bytes").size(), series(both, "loss-steps", "bytes, validation").size());
  EXPECT_NEAR(series(both, "bits-per-byte", "bytes")[0][1].get<double>(),
              4 * series(both, "bits-per-byte", "tokens")[0][1].get<double>(), 1e-9);
  EXPECT_THAT(page_of(folder, {folder.path("pairs")})["text"].get<std::string>(), HasSubstr("nats per pair"));
}

TEST(RunPage, TokensFurtherAheadHaveAPicture) {
  const ProgramFolder folder;
  std::vector<Json> lines = made_up_lines(12, 2, 4, 1);
  json ahead = json::array(), held_out = json::array();
  for (Json& line : lines) {
    line["mtp_loss"] = 1.5 * line["loss"].get<double>();
    ahead.push_back({line["step"], line["mtp_loss"]});
    if (line.contains("validation_loss")) {
      line["validation_mtp_loss"] = 1.25 * line["validation_loss"].get<double>();
      held_out.push_back({line["step"], line["validation_mtp_loss"]});
    }
  }
  write_run(folder.path("a"), lines, made_up_config("a", 2, 4));
  write_run(folder.path("b"), made_up_lines(12, 2, 4, 2), made_up_config("b", 2, 4));
  const json page = page_of(folder, {folder.path("a")});
  EXPECT_EQ(series(page, "mtp-loss", "a, training"), ahead);
  EXPECT_EQ(series(page, "mtp-loss", "a, validation"), held_out);
  EXPECT_FALSE(page_of(folder, {folder.path("b")})["files"].contains("mtp-loss.csv"));
}

TEST(RunPage, ValidationSetsHaveAPictureAndATable) {
  const ProgramFolder folder;
  for (const char* run : {"a", "b"}) {
    std::vector<Json> lines = made_up_lines(12, 2, 4, *run);
    for (Json& line : lines) {
      if (line.contains("validation_loss")) {
        const double loss = line["validation_loss"];
        line["validation_losses"] = {{"code", 0.5 * loss}, {"wiki", 1.25 * loss}};
      }
    }
    write_run(folder.path(run), lines, made_up_config(run, 2, 4));
  }
  const auto expected = [&](const char* run, const std::string& set) {
    json points = json::array();
    std::ifstream in(folder.path(run) / "metrics.jsonl");
    for (std::string line; std::getline(in, line);) {
      const json read = json::parse(line);
      if (read.contains("validation_losses")) {
        points.push_back({read["step"], read["validation_losses"][set]});
      }
    }
    EXPECT_FALSE(points.empty());
    return points;
  };
  const json both = page_of(folder, {folder.path("a"), folder.path("b")});
  const json one = page_of(folder, {folder.path("a")});
  for (const char* set : {"wiki", "code"}) {
    EXPECT_EQ(series(both, "validation-sets", std::string("b, ") + set), expected("b", set));
    EXPECT_EQ(series(one, "validation-sets", set), expected("a", set));
  }
}

TEST(RunPage, SecondsAreTheSumOfStepsByTheirTimes) {
  const ProgramFolder folder;
  std::vector<Json> lines = made_up_lines(3, 0, 0, 1);  // steps 1, 10, 20
  lines[0]["step_seconds"] = 2.0;
  lines[1]["step_seconds"] = 0.5;
  lines[2]["step_seconds"] = 0.25;
  write_run(folder.path("a"), lines);
  const json points = series(page_of(folder, {folder.path("a")}), "loss-seconds", "a, training");
  ASSERT_EQ(points.size(), 3);
  EXPECT_DOUBLE_EQ(points[0][0], 2.0);
  EXPECT_DOUBLE_EQ(points[1][0], 2.0 + 9 * 0.5);
  EXPECT_DOUBLE_EQ(points[2][0], 2.0 + 9 * 0.5 + 10 * 0.25);
}

// Killed in step 15 with a checkpoint of step 10, and again: steps 11 to 15 took 5 * 0.5 s, and then 5 * 0.75 s.
TEST(RunPage, StepsThatAStopTookBackAreTold) {
  const ProgramFolder folder;
  std::vector<Json> lines = made_up_lines(3, 0, 0, 1);  // steps 1, 10, 20
  write_run(folder.path("a"), lines);
  Json lost = lines[2];
  lost["step"] = 15;
  lost["step_seconds"] = 0.5;
  const std::string first = lost.dump();
  lost["step_seconds"] = 0.75;
  write_text(folder.path("a") / "metrics.superseded.jsonl", first + "\n" + lost.dump() + "\n{\"step\": 16, \"lo\n");
  EXPECT_THAT(page_of(folder, {folder.path("a")})["text"].get<std::string>(),
              HasSubstr("a: steps that took 6.25 s were trained again after a stop"));
}

// 2 layers, width 32, 4 heads, FFN 128 with GELU, two of 4 experts, RMS norms, 256 bytes.
TEST(RunPage, FlopsAndParametersAreThoseOfTheConfiguration) {
  const ProgramFolder folder;
  write_run(folder.path("a"), made_up_lines(2, 2, 4, 1), made_up_config("a", 2, 4));
  const json page = page_of(folder, {folder.path("a")});
  const int attention = 4 * 32 * 32, ffn = 2 * 32 * 128, router = 32 * 4, norms = 2 * 32;
  const int dense = 2 * (attention + router + norms) + 32 + 2 * 256 * 32;
  const json points = series(page, "loss-flops", "a, training");
  ASSERT_EQ(points.size(), 2);
  // Products: two operations a weight, forward once and backward twice; scores and their sums over half a sequence.
  const double products = 6.0 * (2 * (attention + router + 2 * ffn) + 256 * 32),
               scores = 3.0 * 2 * (2 * 2 * 32 * 64 / 2);
  EXPECT_NEAR(points[1][0].get<double>() / (20480.0 * (products + scores)), 1, 0.02);
  const std::string total = std::to_string((dense + 2 * 4 * ffn) / 1000);
  EXPECT_THAT(page["text"].get<std::string>(), HasSubstr(total + "."));
}

TEST(RunPage, TheMapOfLoadIsTokensOverTheirMean) {
  const ProgramFolder folder;
  const std::vector<Json> lines = made_up_lines(5, 2, 4, 3);
  write_run(folder.path("a"), lines);
  const json map = picture(page_of(folder, {folder.path("a")}), "load-a")["maps"]["layer 1"];
  ASSERT_EQ(map.size(), 4);
  for (std::size_t expert = 0; expert < 4; ++expert) {
    for (std::size_t column = 0; column < 5; ++column) {
      double sum = 0;
      for (const Json& count : lines[column]["expert_tokens"]["1"]) {
        sum += count.get<double>();
      }
      const double own = lines[column]["expert_tokens"]["1"][expert];
      EXPECT_NEAR(map[expert][column].get<double>(), 4 * own / sum, 5e-4 * 4 * own / sum + 1e-9);
    }
  }
}

// More lines than a map has columns: none is lost from the sums.
TEST(RunPage, ColumnsOfAMapAreSumsOfLines) {
  const ProgramFolder folder;
  const std::vector<Json> lines = made_up_lines(101, 1, 4, 4);
  write_run(folder.path("a"), lines);
  const json map = picture(page_of(folder, {folder.path("a")}), "load-a")["maps"]["layer 0"];
  const std::size_t columns = map[0].size();
  EXPECT_EQ(columns, 48);
  double own = 0, sum = 0;  // of the last column
  for (std::size_t i = 47 * 101 / columns; i < 101; ++i) {
    for (std::size_t expert = 0; expert < 4; ++expert) {
      const double count = lines[i]["expert_tokens"]["0"][expert];
      sum += count;
      own += expert == 2 ? count : 0;
    }
  }
  EXPECT_NEAR(map[2][columns - 1].get<double>(), 4 * own / sum, 1e-3);
}

TEST(RunPage, TheTimelineHasABarForEachRank) {
  const ProgramFolder folder;
  write_run(folder.path("a"), made_up_lines(3, 0, 0, 1), "", made_up_trace(3));
  const json page = page_of(folder, {folder.path("a")});
  const json bars = picture(page, "timeline-a")["bars"];
  EXPECT_EQ(bars.size(), 3);
  EXPECT_EQ(bars["rank 1"], json({0.028, 0.006, 0.002, 0.0, 0.004}));
  EXPECT_THAT(page["text"].get<std::string>(), HasSubstr("3 ms"));  // overlapped: beside the bar, not in it
  EXPECT_THAT(page["text"].get<std::string>(), HasSubstr("rank 1 is late. it has 1.4 times the rows of the others."));
  json trace = made_up_trace(3);
  trace["why"] = "rank 1 is late: it has 1.4 times the rows of the others.";
  write_run(folder.path("b"), made_up_lines(3, 0, 0, 1), "", trace);
  EXPECT_THAT(page_of(folder, {folder.path("b")})["text"].get<std::string>(),
              HasSubstr("b: rank 1 is late: it has 1.4"))
      << "as the program writes it";
}

TEST(RunPage, RunsAreComparedAndOnlySettingsThatDifferAreListed) {
  const ProgramFolder folder;
  write_run(folder.path("x/r"), made_up_lines(4, 1, 4, 1), made_up_config("r", 1, 4));
  write_run(folder.path("y/r"), made_up_lines(4, 1, 8, 2), made_up_config("other", 1, 8));
  const json page = page_of(folder, {folder.path("x/r"), folder.path("y/r")});
  EXPECT_EQ(picture(page, "loss-steps")["series"].size(), 2);
  EXPECT_FALSE(series(page, "loss-steps", "r (2), training").empty());
  json found;
  for (const json& table : page["tables"]) {
    found = table[0][0] == "setting" ? table : found;
  }
  EXPECT_EQ(found, json({{"setting", "r (1)", "r (2)"}, {"moe.experts", "4", "8"}}));
}

TEST(RunPage, FilesBesideThePicturesHoldWhatIsDrawn) {
  const ProgramFolder folder;
  const std::vector<Json> lines = made_up_lines(4, 0, 0, 1);
  write_run(folder.path("a"), lines);
  const json page = page_of(folder, {folder.path("a")});
  std::string expected = "series,optimizer steps,L2 norm\r\n";
  for (const Json& line : lines) {
    expected += "a," + line["step"].dump() + "," + line["grad_norm"].dump() + "\r\n";
  }
  EXPECT_EQ(page["files"]["grad-norm.csv"], expected);
  for (const auto& [id, words] : page["figures"].items()) {
    EXPECT_TRUE(page["files"].contains(id + ".csv")) << id;
    EXPECT_THAT(words.get<std::string>(), HasSubstr("orthant launch ")) << id;
  }
}

TEST(RunPage, NothingComesFromOutsideAndNoScriptRuns) {
  const ProgramFolder folder;
  write_run(folder.path("a"), made_up_lines(6, 2, 4, 1), made_up_config("a", 2, 4), made_up_trace(2));
  const json page = page_of(folder, {folder.path("a")});
  EXPECT_EQ(page["outside"], json::array());
  EXPECT_EQ(page["twice"], json::array()) << "ids that stand twice";
  for (const char* element : {"script", "link", "iframe", "img", "object", "base"}) {
    EXPECT_FALSE(page["elements"].contains(element)) << element;
  }
  for (const auto& [id, found] : page["pictures"].items()) {
    EXPECT_FALSE(found["title"].get<std::string>().empty() || found["description"].get<std::string>().empty()) << id;
  }
}

TEST(RunPage, HostileNamesAreTextAndNothingElse) {
  const ProgramFolder folder;
  const std::string name = "<script>alert(1)<!--&amp;\"'>]]>\x01\xff\xed\xa0\x80 $(reboot)";
  std::vector<Json> lines = made_up_lines(3, 1, 2, 1);
  lines[0]["alarms"] = {"</li><script>alert(2)</script>"};
  lines[0]["peak_by_kind"]["<b onclick='x'>"] = 5;
  lines[2]["peak_by_kind"]["<b onclick='x'>"] = 5;
  lines[0]["routing"]["<i>"] = {{"margin", 1.0}};
  write_run(folder.path(name), lines, "[run]\nname = \"</p><script>\"\n[model]\nnorm = \"<i>&\"\n");
  const json page = page_of(folder, {folder.path(name)});
  ASSERT_FALSE(page.is_null());
  EXPECT_FALSE(page["elements"].contains("script"));
  EXPECT_FALSE(page["elements"].contains("b") || page["elements"].contains("i"));
  EXPECT_EQ(page["outside"], json::array());
  const std::string text = page["text"];
  EXPECT_THAT(text, HasSubstr("<script>alert(1)<!--&amp;\"'>]]>\xEF\xBF\xBD"));
  EXPECT_THAT(text, HasSubstr("</li><script>alert(2)</script>"));
  EXPECT_THAT(text, HasSubstr("<i>&"));
  EXPECT_THAT(text, HasSubstr("\"'\\''>"));  // the command quotes the folder for a shell
}

TEST(RunPage, AFieldThatWouldBeAFormulaIsNone) {
  const ProgramFolder folder;
  write_run(folder.path("=cmd(),\"x\""), made_up_lines(2, 0, 0, 1));
  const json page = page_of(folder, {folder.path("=cmd(),\"x\"")});
  EXPECT_THAT(page["files"]["grad-norm.csv"].get<std::string>(), HasSubstr("\r\n\"'=cmd(),\"\"x\"\"\",1,"));
}

TEST(RunPage, AnEmptyRunIsAPageWithoutPictures) {
  const ProgramFolder folder;
  write_run(folder.path("a"), {});
  const json page = page_of(folder, {folder.path("a")});
  EXPECT_TRUE(page["pictures"].empty());
  EXPECT_THAT(page["text"].get<std::string>(), HasSubstr("metrics.jsonl has no line yet"));
  EXPECT_THAT(page["text"].get<std::string>(), HasSubstr("config.resolved.toml is missing"));
}

TEST(RunPage, OneLineIsOnePointThatCanBeSeen) {
  const ProgramFolder folder;
  write_run(folder.path("a"), made_up_lines(1, 1, 4, 1));
  const json page = page_of(folder, {folder.path("a")});
  EXPECT_EQ(series(page, "loss-steps", "a, training").size(), 1);
  EXPECT_EQ(picture(page, "loss-steps")["drawn"]["a, training"], 2);  // a line of no length, and a marker
}

TEST(RunPage, NumbersThatAreNotFiniteAreLeftOut) {
  const ProgramFolder folder;
  std::vector<Json> lines = made_up_lines(5, 1, 4, 1);
  lines[2]["loss"] = nullptr;  // as NaN is written
  lines[3]["grad_norm"] = nullptr;
  for (Json& line : lines) {
    line["lr"] = nullptr;
  }
  lines[4]["expert_tokens"]["0"] = {0, 0, 0, 0};
  write_run(folder.path("a"), lines);
  const json page = page_of(folder, {folder.path("a")});
  EXPECT_EQ(series(page, "loss-steps", "a, training").size(), 4);
  EXPECT_EQ(series(page, "grad-norm", "a").size(), 4);
  EXPECT_FALSE(page["pictures"].contains("learning-rate-picture"));
  EXPECT_EQ(picture(page, "load-a")["maps"]["layer 0"][0][4], nullptr);
  EXPECT_EQ(text_in(folder.path("page.html")).find("nan,"), std::string::npos);
}

TEST(RunPage, ALineThatAKillCutShortIsPassedOver) {
  const ProgramFolder folder;
  write_run(folder.path("a"), made_up_lines(3, 0, 0, 1));
  write_text(folder.path("a/metrics.jsonl"), text_in(folder.path("a/metrics.jsonl")) + "{\"step\": 30, \"lo");
  const json page = page_of(folder, {folder.path("a")});
  EXPECT_EQ(series(page, "loss-steps", "a, training").size(), 3);
  EXPECT_THAT(page["text"].get<std::string>(), HasSubstr("metrics.jsonl:4 is cut short"));
}

// What the page of a run with this metrics.jsonl is refused with.
std::string refusal(const std::string& metrics) {
  const ProgramFolder folder;
  write_text(folder.path("a/metrics.jsonl"), metrics);
  const fs::path runs[] = {folder.path("a")};
  const std::string reason = test::error_of<ConfigError>([&] { write_run_report(runs, folder.path("page.html")); });
  EXPECT_FALSE(fs::exists(folder.path("page.html")));
  return reason;
}

TEST(RunPage, WhatCannotBeUnderstoodIsRefusedByFileAndLine) {
  EXPECT_THAT(refusal("{\"step\":1}\nnot json\n{\"step\":2}\n"), HasSubstr("metrics.jsonl:2: not valid JSON"));
  EXPECT_THAT(refusal("{\"step\":1,\"loss\":\"low\"}\n"),
              HasSubstr("metrics.jsonl:1: 'loss': expected a number, found string"));
  EXPECT_THAT(refusal("{\"loss\":1}\n"), HasSubstr("metrics.jsonl:1: 'step' must be a whole number"));
  EXPECT_THAT(refusal("[1]\n"), HasSubstr("metrics.jsonl:1: expected a JSON object, found array"));
  EXPECT_THAT(refusal("{\"step\":5}\n{\"step\":4}\n"), HasSubstr("metrics.jsonl:2: step 4 comes after step 5"));
  EXPECT_THAT(refusal("{\"step\":5,\"expert_tokens\":[1]}\n"), HasSubstr("'expert_tokens' must be an object"));
  EXPECT_THAT(refusal("{\"step\":5,\"expert_tokens\":{\"0\":[\"x\"]}}\n"),
              HasSubstr("expected a number, found string"));
  EXPECT_THAT(refusal("{\"step\":5,\"alarms\":[1]}\n"), HasSubstr("'alarms' must be a list of sentences"));
}

TEST(RunPage, TheProgramWritesItAndRefusesWith78) {
  const ProgramFolder folder;
  write_run(folder.path("a"), made_up_lines(3, 0, 0, 1));
  write_run(folder.path("b"), made_up_lines(3, 0, 0, 2));
  run_test::Result result = folder.orthant({"report", "a"});
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(result.output, "a/report.html\n");
  EXPECT_EQ(folder.orthant({"report", "a", "b", "-o", "c.html"}).code, 0);
  EXPECT_EQ(held_by(folder, folder.path("c.html"))["pictures"].size(),
            held_by(folder, folder.path("a/report.html"))["pictures"].size());
  result = folder.orthant({"report", "nothing"});
  EXPECT_EQ(result.code, 78);
  EXPECT_THAT(result.error, HasSubstr("'nothing' does not exist"));
  write_text(folder.path("a/metrics.jsonl"), "{\n{\n");
  EXPECT_EQ(folder.orthant({"report", "a"}).code, 78);
  EXPECT_EQ(folder.orthant({"report", "a", "-o", "no/such/folder.html"}).code, 78);  // the run is read first
  EXPECT_EQ(folder.orthant({"report", "b", "-o", "no/such/folder.html"}).code, 78);
}

}  // namespace
}  // namespace orthant::report_test::run_page_test
