// `orthant bench compare`: runs and studies that are written here, and what cannot be read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/error.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "bench/compare/compare_results.h"
#include "tests/support/program.h"

namespace orthant::compare_results_test {
namespace {

using run_test::ProgramFolder;
using testing::HasSubstr;
using Json = nlohmann::ordered_json;

// `lines` lines, ten steps apart; the first is slow, as after a start.
std::string metrics(double seconds, double loss, int lines = 60) {
  std::string text;
  for (int i = 0; i < lines; ++i) {
    const double noise = 0.01 * std::sin(7.0 * i) + 0.005 * std::cos(3.1 * i);
    const double step_seconds = (i == 0 ? 10 : 1) * seconds * (1 + noise);
    Json line = {{"step", 10 * (i + 1)},
                 {"loss", loss * (1 + 3.0 / (i + 1) + 0.1 * noise)},
                 {"step_seconds", step_seconds},
                 {"tokens_per_second", 1000 / step_seconds}};
    if (i % 3 == 2) {
      line["validation_loss"] = loss * (1 + 1.0 / (i + 1) + 0.05 * noise);
    }
    text += line.dump() + "\n";
  }
  return text;
}

const ComparedRow* row(const ComparedResults& results, const std::string& quantity) {
  for (const ComparedRow& r : results.rows) {
    if (r.quantity == quantity) {
      return &r;
    }
  }
  return nullptr;
}

// A card of three seeds at one of six points, a failed one, and losses and times that are scaled.
std::string card(double loss, double seconds) {
  Json points = Json::array();
  for (const int experts : {1, 2, 4, 8, 16, 32}) {
    for (int seed = 1; seed <= (experts == 8 ? 3 : 1); ++seed) {
      Json point = {{"id", fmt::format("small_e{}_s{}", experts, seed)}, {"seed", seed}, {"status", "done"}};
      point["result"] = {{"validation_loss", loss * (3 - 0.1 * std::log2(experts)) * (1 + 0.002 * (seed - 2))},
                         {"step_seconds", seconds * (0.1 + 0.001 * experts)}};
      points.push_back(point);
    }
  }
  points.push_back(
      {{"id", "small_e64_s1"}, {"seed", 1}, {"status", "failed"}, {"error", "killed"}, {"result", nullptr}});
  return Json{{"format", 1}, {"points", points}}.dump();
}

class CompareResults : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    folder_.write(name, text);
    return folder_.path(name).string();
  }
  // What is said of files that cannot be compared.
  std::string refusal(const std::string& a, const std::string& b) {
    try {
      compare_results(a, b, std::nullopt);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "(compared)";
  }
  ProgramFolder folder_;
};

TEST_F(CompareResults, AFasterRunIsFaster) {
  const std::string a = write("a.jsonl", metrics(0.2, 2)), b = write("b.jsonl", metrics(0.18, 2));
  const ComparedResults results = compare_results(a, b, std::nullopt);
  EXPECT_EQ(results.kind, "runs");
  const ComparedRow* seconds = row(results, "step_seconds, median");
  ASSERT_NE(seconds, nullptr);
  EXPECT_EQ(seconds->verdict, "faster");
  EXPECT_NEAR(seconds->numbers.before, 0.2, 0.002);
  EXPECT_NEAR(seconds->numbers.ratio, 0.9, 1e-9);
  EXPECT_LT(*seconds->numbers.interval.high, 1);
  const ComparedRow* tokens = row(results, "tokens_per_second, median");
  EXPECT_EQ(tokens->verdict, "faster");
  EXPECT_NEAR(tokens->numbers.ratio, 1 / 0.9, 1e-9);
  EXPECT_EQ(row(results, "loss, last 6 lines")->verdict, "no difference shown");
  EXPECT_EQ(row(results, "validation_loss, last")->verdict, "no difference shown");
  EXPECT_EQ(row(compare_results(b, a, std::nullopt), "step_seconds, median")->verdict, "slower");
}

TEST_F(CompareResults, ALowerLossIsLower) {
  const std::string a = write("a.jsonl", metrics(0.2, 2)), b = write("b.jsonl", metrics(0.2, 1.98));
  const ComparedResults results = compare_results(a, b, std::nullopt);
  EXPECT_EQ(row(results, "step_seconds, median")->verdict, "no difference shown");
  EXPECT_EQ(row(results, "loss, last 6 lines")->verdict, "lower");
  EXPECT_EQ(row(results, "validation_loss, last")->verdict, "lower");
  EXPECT_NEAR(row(results, "validation_loss, last")->numbers.ratio, 0.99, 1e-9);
}

// Lines of `metrics` with losses of sets beside each validation loss.
std::string with_sets(const std::string& text, const std::vector<std::pair<std::string, double>>& sets) {
  std::istringstream lines(text);
  std::string all;
  for (std::string line; std::getline(lines, line);) {
    Json json = Json::parse(line);
    for (const auto& [name, factor] : sets) {
      if (json.contains("validation_loss")) {
        json["validation_losses"][name] = factor * json["validation_loss"].get<double>();
      }
    }
    all += json.dump() + "\n";
  }
  return all;
}

TEST_F(CompareResults, EachValidationSetIsComparedByName) {
  const std::string a = write("a.jsonl", with_sets(metrics(0.2, 2), {{"wiki", 1}, {"code", 0.5}}));
  const std::string b = write("b.jsonl", with_sets(metrics(0.2, 2), {{"wiki", 1}, {"code", 0.49}}));
  const ComparedResults results = compare_results(a, b, std::nullopt);
  ASSERT_NE(row(results, "validation_loss, wiki, last"), nullptr);
  EXPECT_EQ(row(results, "validation_loss, wiki, last")->verdict, "no difference shown");
  EXPECT_EQ(row(results, "validation_loss, code, last")->verdict, "lower");
  EXPECT_NEAR(row(results, "validation_loss, code, last")->numbers.ratio, 0.98, 1e-9);
  EXPECT_THAT(results.notes, testing::Each(testing::Not(HasSubstr("the validation sets of"))));
  const std::string c = write("c.jsonl", with_sets(metrics(0.2, 2), {{"wiki", 1}, {"math", 1}}));
  const ComparedResults other = compare_results(a, c, std::nullopt);
  EXPECT_NE(row(other, "validation_loss, wiki, last"), nullptr);
  EXPECT_EQ(row(other, "validation_loss, code, last"), nullptr);
  EXPECT_THAT(other.notes, testing::Contains(
                               testing::AllOf(HasSubstr("a.jsonl are code, wiki, those of "),
                                              HasSubstr("c.jsonl math, wiki: validation_loss may be of other texts"))));
}

TEST_F(CompareResults, WarmUpIsLeftOut) {
  // 9 of 13 lines are slow.
  std::string slow;
  for (int i = 0; i < 13; ++i) {
    slow += Json{{"step", i + 1}, {"step_seconds", i < 9 ? 5.0 : 1.0}}.dump() + "\n";
  }
  const std::string a = write("a.jsonl", slow);
  EXPECT_NEAR(row(compare_results(a, a, 9), "step_seconds, median")->numbers.before, 1, 1e-12);
  EXPECT_NEAR(row(compare_results(a, a, 0), "step_seconds, median")->numbers.before, 5, 1e-12);
}

TEST_F(CompareResults, UnlikeSeedsAreSaid) {
  const auto run = [&](const std::string& name, const std::string& seed) {
    std::filesystem::create_directories(folder_.path(name));
    write(name + "/metrics.jsonl", metrics(0.2, 2));
    write(name + "/config.resolved.toml", "[run]\nseed = " + seed + "  # default\n");
    return folder_.path(name).string();
  };
  const std::string one = run("one", "1"), two = run("two", "2"), again = run("again", "1"), bad = run("bad", "[");
  const auto notes = [](const std::string& a, const std::string& b) {
    return testing::PrintToString(compare_results(a, b, std::nullopt).notes);
  };
  EXPECT_THAT(notes(one, two), HasSubstr("run.seed is 1 in "));
  EXPECT_THAT(notes(one, again), testing::Not(HasSubstr("run.seed")));
  EXPECT_THAT(notes(one, bad), testing::Not(HasSubstr("run.seed")));
}

// A nat per byte is no nat per token, nor is one per token of another tokenizer.
TEST_F(CompareResults, LossesOfUnlikeUnitsAreComparedInBitsPerByteOrNotAtAll) {
  const auto run = [&](const std::string& name, const std::string& data, double bytes, const std::string& tokenizer) {
    std::filesystem::create_directories(folder_.path(name + "/tokenizer"));
    std::istringstream lines(metrics(0.2, bytes > 0 ? 2 * bytes : 2));
    std::string all;
    for (std::string line; std::getline(lines, line);) {
      Json json = Json::parse(line);
      if (bytes > 0 && json.contains("validation_loss")) {
        json["validation_bits_per_byte"] = json["validation_loss"].get<double>() / (std::log(2.0) * bytes);
      }
      all += json.dump() + "\n";
    }
    write(name + "/metrics.jsonl", all);
    write(name + "/config.resolved.toml", "[data]\n" + data);
    if (!tokenizer.empty()) {
      write(name + "/tokenizer/tokenizer.json", tokenizer);
    }
    return folder_.path(name).string();
  };
  const std::string tokens = "source = \"text\"\ntokenizer = \"t.json\"\n";
  const std::string bytes = run("bytes", "source = \"text\"\ntokenizer = \"bytes\"\n", 1, "");
  const std::string words = run("words", tokens, 4, "{}"), other = run("other", tokens, 0, "{ }");
  const std::string pairs = run("pairs", "source = \"pairs\"\ntokenizer = \"bytes\"\n", 0, "");

  const ComparedResults same = compare_results(words, words, std::nullopt);
  EXPECT_EQ(row(same, "loss, last 6 lines")->unit, "nats per token");
  EXPECT_EQ(row(compare_results(bytes, bytes, std::nullopt), "validation_loss, last")->unit, "nats per byte");
  const ComparedResults unlike = compare_results(bytes, words, std::nullopt);
  EXPECT_EQ(row(unlike, "loss, last 6 lines"), nullptr);
  EXPECT_EQ(row(unlike, "validation_loss, last"), nullptr);
  ASSERT_NE(row(unlike, "validation_bits_per_byte, last"), nullptr);
  EXPECT_NEAR(row(unlike, "validation_bits_per_byte, last")->numbers.ratio, 1, 1e-9);
  EXPECT_THAT(unlike.notes, testing::Contains(testing::AllOf(HasSubstr("nats per byte, those of "),
                                                             HasSubstr("nats per token (tokenizer "))));
  const std::string focal =
      run("focal", "source = \"text\"\ntokenizer = \"t.json\"\n[train]\nobjective = \"focal\"\n", 0, "{}");
  EXPECT_EQ(row(compare_results(focal, focal, std::nullopt), "loss, last 6 lines")->unit, "of objective \"focal\"");
  for (const std::string& with : {other, pairs, focal}) {
    const ComparedResults nothing = compare_results(words, with, std::nullopt);
    EXPECT_EQ(row(nothing, "loss, last 6 lines"), nullptr) << with;
    EXPECT_EQ(row(nothing, "validation_bits_per_byte, last"), nullptr) << with;
    EXPECT_THAT(nothing.notes, testing::Contains(HasSubstr("is not in both runs"))) << with;
  }
}

TEST_F(CompareResults, ALineThatWasCutIsLeftOut) {
  const std::string whole = metrics(0.2, 2);
  const std::string a = write("a.jsonl", whole), b = write("b.jsonl", whole + R"({"step": 610, "lo)");
  EXPECT_EQ(row(compare_results(a, b, std::nullopt), "step_seconds, median")->numbers.ratio, 1);
}

TEST_F(CompareResults, OfStepsThatStandTwiceTheLaterLinesCount) {
  const std::string a = write("a.jsonl", metrics(0.2, 2)), b = write("b.jsonl", metrics(0.4, 2, 30) + metrics(0.2, 2));
  EXPECT_EQ(row(compare_results(a, b, std::nullopt), "step_seconds, median")->numbers.ratio, 1);
}

TEST_F(CompareResults, StudiesByPointAndAsAWhole) {
  const std::string a = write("a.json", card(1, 1)), b = write("b.json", card(0.98, 1.2));
  const ComparedResults results = compare_results(a, b, std::nullopt);
  EXPECT_EQ(results.kind, "studies");
  const ComparedRow* loss = row(results, "validation_loss, small_e8");
  ASSERT_NE(loss, nullptr);
  EXPECT_EQ(loss->verdict, "lower");
  EXPECT_NEAR(loss->numbers.ratio, 0.98, 1e-9);
  EXPECT_EQ(row(results, "step_seconds, small_e8")->verdict, "noise unknown");
  EXPECT_EQ(row(results, "step_seconds, 6 points")->verdict, "slower");
  EXPECT_NEAR(row(results, "step_seconds, 6 points")->numbers.ratio, 1.2, 1e-9);
  EXPECT_EQ(row(results, "validation_loss, small_e64"), nullptr);
  // A difference of half a seed's spread is none that is shown.
  const std::string near = write("c.json", card(1.001, 1));
  EXPECT_EQ(row(compare_results(a, near, std::nullopt), "validation_loss, small_e2")->verdict, "no difference shown");
}

// Seeds are the same batches in both studies: what they have in common is no noise of the difference.
TEST_F(CompareResults, PointsOfTheSameSeedsArePaired) {
  const auto study = [&](const std::string& name, const std::vector<double>& losses) {
    Json points = Json::array();
    for (std::size_t i = 0; i < losses.size(); ++i) {
      points.push_back({{"id", fmt::format("small_e8_s{}", i + 1)},
                        {"seed", i + 1},
                        {"status", "done"},
                        {"result", {{"validation_loss", losses[i]}}}});
    }
    return write(name, Json{{"format", 1}, {"points", points}}.dump());
  };
  const std::string a = study("a.json", {2.0, 2.2, 2.4}), b = study("b.json", {1.981, 2.178, 2.375});
  const ComparedResults paired = compare_results(a, b, std::nullopt);
  EXPECT_EQ(row(paired, "validation_loss, small_e8")->verdict, "lower");
  EXPECT_GT(row(paired, "validation_loss, small_e8")->numbers.interval.low.value_or(0), 0.98);
  EXPECT_THAT(paired.notes, testing::Contains(HasSubstr("one seed in both studies, 2 degrees of freedom")));
  const std::string fewer = study("c.json", {1.981, 2.178});
  EXPECT_EQ(row(compare_results(a, fewer, std::nullopt), "validation_loss, small_e8")->verdict, "no difference shown");
}

// Their notes as one text.
std::string notes(const ComparedResults& results) {
  std::string text;
  for (const std::string& note : results.notes) {
    text += note + "\n";
  }
  return text;
}

TEST_F(CompareResults, RunsOfUnlikeLengthAreToldOf) {
  const std::string a = write("a.jsonl", metrics(0.2, 2)), b = write("b.jsonl", metrics(0.2, 2, 30));
  EXPECT_THAT(notes(compare_results(a, b, std::nullopt)),
              testing::AllOf(HasSubstr("a.jsonl has 60 lines to step 600"), HasSubstr("b.jsonl has 30 to step 300")));
  EXPECT_THAT(notes(compare_results(a, a, std::nullopt)), testing::Not(HasSubstr("not of one length")));
}

TEST_F(CompareResults, LossesThatAreLostAtTheEndAreToldOf) {
  std::string text = metrics(0.2, 2, 56);
  for (int step = 570; step <= 600; step += 10) {
    text += Json{{"step", step}, {"loss", nullptr}, {"step_seconds", 0.2}, {"validation_loss", nullptr}}.dump() + "\n";
  }
  const std::string a = write("a.jsonl", metrics(0.2, 2)), b = write("b.jsonl", text);
  const std::string told = notes(compare_results(a, b, std::nullopt));
  EXPECT_THAT(told, HasSubstr("b.jsonl: the last 4 lines with loss have no finite one above 0; step 560 is taken"));
  EXPECT_THAT(told, HasSubstr("b.jsonl: the last 4 lines with validation_loss have no finite one above 0; step 540"));
  EXPECT_THAT(told, testing::Not(HasSubstr("a.jsonl")));
}

TEST_F(CompareResults, StudiesOfOtherSettingsAreToldOf) {
  const auto with = [](const char* hash, int steps, int layers) {
    Json json = Json::parse(card(1, 1));
    json["text"] = {{"path", "/x"}, {"hash", hash}};
    json["config"] = {{"run", {{"steps", steps}, {"name", hash}}}, {"model", {{"layers", layers}, {"heads", 2}}}};
    json["points"][0]["set"] = {fmt::format("model.d_model={}", 8 * layers)};
    return json.dump();
  };
  const std::string a = write("a.json", with("h1", 10, 2)), b = write("b.json", with("h2", 20, 3));
  EXPECT_THAT(notes(compare_results(a, b, std::nullopt)),
              testing::AllOf(HasSubstr("text (h1 before, h2 after)"), HasSubstr("run.steps (10 before, 20 after)"),
                             HasSubstr("model.layers (2 before, 3 after)"), HasSubstr("set of small_e1_s1"),
                             testing::Not(HasSubstr("run.name")), testing::Not(HasSubstr("model.heads"))));
  EXPECT_THAT(notes(compare_results(a, a, std::nullopt)), testing::Not(HasSubstr("differ in more")));
}

TEST_F(CompareResults, WhatCannotBeReadIsRefused) {
  const std::string run = write("a.jsonl", metrics(0.2, 2)), study = write("a.json", card(1, 1));
  EXPECT_THAT(refusal(folder_.path("nowhere").string(), run), HasSubstr("there is no file"));
  EXPECT_THAT(refusal(run, folder_.path().string()), HasSubstr("metrics.jsonl"));
  EXPECT_THAT(refusal(run, study), HasSubstr("two of one kind can be compared"));
  EXPECT_THAT(refusal(run, write("b.jsonl", "")), HasSubstr("no line of metrics"));
  EXPECT_THAT(refusal(run, write("b.jsonl", "nonsense\n")), HasSubstr("b.jsonl:1: not valid JSON"));
  EXPECT_THAT(refusal(run, write("b.jsonl", "{\"loss\": 1}\n")), HasSubstr("needs the key 'step'"));
  EXPECT_THAT(refusal(run, write("b.jsonl", "{\"step\": \"1\"}\n")), HasSubstr("needs the key 'step'"));
  EXPECT_THAT(refusal(run, write("b.jsonl", "{\"step\": 1}\n")), HasSubstr("nothing in common"));
  EXPECT_THAT(refusal(study, write("b.json", "[]")), HasSubstr("a list 'points'"));
  EXPECT_THAT(refusal(study, write("b.json", R"({"points": [3]})")), HasSubstr("a point has no 'id'"));
  EXPECT_THAT(refusal(study, write("b.json", R"({"points": []})")), HasSubstr("no finished point in common"));
  EXPECT_THAT(refusal(study, write("b.json", R"({"points": [{"id": "a", "status": 3, "result": {}}]})")),
              HasSubstr("no finished point in common"));
}

TEST_F(CompareResults, DamagedFilesAreComparedOrRefused) {
  std::mt19937_64 bits(1);
  int refused = 0;
  for (const auto& [name, text] : {std::pair{"a.jsonl", metrics(0.2, 2, 12)}, std::pair{"a.json", card(1, 1)}}) {
    const std::string whole = write(std::string("whole_") + name, text);
    for (int i = 0; i < 300; ++i) {
      std::string damaged = text;
      for (int change = 0; change < 3; ++change) {
        const std::size_t at = bits() % damaged.size();
        switch (bits() % 4) {
          case 0: damaged[at] = static_cast<char>(bits()); break;
          case 1: damaged.erase(at, 1 + bits() % 8); break;
          case 2: damaged[at] = "0123456789-e.{}[]\",:n"[bits() % 22]; break;
          default: damaged.insert(at, damaged.substr(bits() % damaged.size(), bits() % 30));
        }
      }
      refused += refusal(whole, write(name, damaged)) == "(compared)" ? 0 : 1;  // nothing but ConfigError leaves it
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_LT(refused, 600);
}

TEST_F(CompareResults, TheProgramPrintsATableOrJson) {
  write("runs/a/metrics.jsonl", metrics(0.2, 2));
  write("runs/b/metrics.jsonl", metrics(0.18, 2));
  const run_test::Result table = folder_.orthant({"bench", "compare", "runs/a", "runs/b"});
  EXPECT_EQ(table.code, 0);
  EXPECT_THAT(table.output, HasSubstr("step_seconds, median"));
  EXPECT_THAT(table.output, HasSubstr("0.9000"));
  EXPECT_THAT(table.output, HasSubstr("faster"));
  const run_test::Result text = folder_.orthant({"bench", "compare", "--json", "runs/a", "runs/b"});
  const Json json = Json::parse(text.output);
  EXPECT_EQ(json.at("rows").at(0).at("verdict"), "faster");
  EXPECT_NEAR(json.at("rows").at(0).at("ratio").get<double>(), 0.9, 1e-9);
  EXPECT_LT(json.at("rows").at(0).at("high").get<double>(), 1);
  const run_test::Result refused = folder_.orthant({"bench", "compare", "runs/a", "runs/c"});
  EXPECT_EQ(refused.code, 78);
  EXPECT_THAT(refused.error, HasSubstr("runs/c"));
}

}  // namespace
}  // namespace orthant::compare_results_test
