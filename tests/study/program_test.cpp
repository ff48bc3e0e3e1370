// orthant bench expert-scaling as its users run it: from a grid to a card.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/study/study_program.h"
#include "tests/support/paths.h"

namespace orthant::study_program_test {
namespace {

using nlohmann::json;
using run_test::lines_of;
using run_test::Result;
using study_test::base;
using study_test::StudyProgram;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

TEST_F(StudyProgram, LeavesACardWhosePointsAreWhatTrainSays) {
  write("side_by_side = 2\ntiming_rounds = 2\ntiming_steps = 2\n", "[[grid]]\nexperts = [1, 4]\nseeds = [7]\n");
  const Result dry = run({"--dry-run"});
  EXPECT_EQ(dry.code, 0) << dry.error;
  EXPECT_THAT(dry.output, AllOf(HasSubstr("base_e4_k1_g1_one_s7"), HasSubstr("2 points")));
  EXPECT_FALSE(std::filesystem::exists(study()));
  const Result one = run({"--dry-run", "--only", "base_e1_k1_g1_one_s7"});
  EXPECT_THAT(one.output, AllOf(HasSubstr("base_e1_k1_g1_one_s7"), HasSubstr("1 of 2 points"),
                                testing::Not(HasSubstr("base_e4_k1_g1_one_s7"))));

  const Result done = run();
  ASSERT_EQ(done.code, 0) << done.output << done.error;
  EXPECT_THAT(done.output, AllOf(HasSubstr("[2/2]"), HasSubstr("2 of 2 points are done, 0 failed")));
  const auto all = points();
  ASSERT_EQ(all.size(), 2u);
  for (const auto& [id, point] : all) {
    EXPECT_EQ(point.at("status"), "done");
    const json& result = point.at("result");
    ASSERT_EQ(result.at("curve").size(), 3u) << result;
    EXPECT_EQ(result.at("curve")[2][0], 6);
    EXPECT_EQ(result.at("curve")[2][1], 6 * 4 * 16);
    EXPECT_EQ(result.at("step_seconds_of_rounds").size(), 2u);
    EXPECT_GT(result.at("step_seconds").get<double>(), 0);
    // The same point by itself, by the command that the card stands for.
    std::vector<std::string> words = {"train", "studies/s/config.toml", "--set", "run.name=again"};
    for (const json& set : point.at("set")) {
      words.insert(words.end(), {"--set", set.get<std::string>()});
    }
    std::filesystem::remove_all(folder_.run("again"));
    const Result again = folder_.orthant(words);
    ASSERT_EQ(again.code, 0) << again.error;
    EXPECT_EQ(json::parse(lines_of(folder_.run("again") / "metrics.jsonl").back()).at("validation_loss"),
              result.at("validation_loss"));
    EXPECT_FALSE(std::filesystem::exists(study("points/" + id + "/checkpoints")));
  }
  const auto table = lines_of(study("points.csv"));
  ASSERT_EQ(table.size(), 3u);
  EXPECT_THAT(table[1], StartsWith("\"base_e1_k1_g1_one_s7\",\"base\",1,1,1,0.0,\"one\",1,7,"));
  EXPECT_EQ(std::count(table[2].begin(), table[2].end(), ','), std::count(table[0].begin(), table[0].end(), ','));
  // Two points bear no law, and a speed-up.
  const json fits = json::parse(launch_test::read_file(study("fits.json")));
  EXPECT_FALSE(fits.at("skipped").empty());
  EXPECT_EQ(fits.at("speed_up").at(0).at("id"), "base_e4_k1_g1_one_s7");
  EXPECT_EQ(fits.at("speed_up").at(0).at("twin"), "base_e1_k1_g1_one_s7");
  EXPECT_THAT(run().error, HasSubstr("Go on with --resume"));
  EXPECT_EQ(run().code, 78);
}

// Routers that learn nothing from the loss: what a configuration warns of is a study's to say, once.
TEST_F(StudyProgram, SaysWhatItsConfigurationsWarnOf) {
  write("side_by_side = 1\ntiming_rounds = 0\nset = [\"moe.router=\\\"topk\\\"\"]\n",
        "[[grid]]\nexperts = [1, 2, 4]\ntop_k = [1]\n");
  const std::string warning = "the router learns from its auxiliary losses alone";
  const auto times = [&](const std::string& text) {
    std::size_t count = 0;
    for (std::size_t at = text.find(warning); at != std::string::npos; at = text.find(warning, at + 1)) {
      ++count;
    }
    return count;
  };
  const Result dry = run({"--dry-run"});
  EXPECT_EQ(times(dry.error), 1u) << dry.error;
  EXPECT_THAT(dry.error, HasSubstr("base_e2_k1_g1_one_s1 and 1 more: "));
  const Result done = run();
  EXPECT_EQ(done.code, 0) << done.output << done.error;
  EXPECT_EQ(times(done.error), 1u) << done.error;
  EXPECT_EQ(times(launch_test::read_file(study("report.html"))), 1u);
}

// A card is enough for another machine.
TEST_F(StudyProgram, RunsAgainFromItsCard) {
  write("side_by_side = 1\ntiming_rounds = 0\n", "[[grid]]\nexperts = [4]\n");
  ASSERT_EQ(run().code, 0);
  const auto before = points();
  std::filesystem::create_directories(folder_.path("elsewhere"));
  std::filesystem::rename(study("study.json"), folder_.path("elsewhere/card.json"));
  std::filesystem::remove_all(study());
  for (const char* name : {"base.toml", "study.toml"}) {
    std::filesystem::remove(folder_.path(name));
  }
  const Result again = folder_.orthant({"bench", "expert-scaling", "elsewhere/card.json"});
  ASSERT_EQ(again.code, 0) << again.output << again.error;
  EXPECT_EQ(points().at("base_e4_k1_g1_one_s1").at("result").at("curve"),
            before.at("base_e4_k1_g1_one_s1").at("result").at("curve"));
  std::filesystem::remove_all(study());
  folder_.write("other.txt", launch_test::read_file(folder_.path("text.txt")) + "!");
  const std::string other = "data.path=" + folder_.path("other.txt").string();
  const Result refused = folder_.orthant({"bench", "expert-scaling", "elsewhere/card.json", "--set", other});
  EXPECT_EQ(refused.code, 78);
  EXPECT_THAT(refused.error, HasSubstr("trained on a text with hash"));
}

TEST_F(StudyProgram, AFailedPointIsKeptWithItsReasonAndTheOthersGoOn) {
  write("side_by_side = 1\ntiming_rounds = 0\n",
        "[[size]]\nname = \"good\"\n[[size]]\nname = \"wild\"\nset = [\"optimizer.lr=1e30\", "
        "\"optimizer.clip_grad_norm=0\"]\n"
        "[[grid]]\nexperts = [4]\n");
  const Result mixed = run();
  EXPECT_EQ(mixed.code, 1) << mixed.output;
  EXPECT_THAT(mixed.output, HasSubstr("1 of 2 points are done, 1 failed"));
  EXPECT_EQ(points().at("good_e4_k1_g1_one_s1").at("status"), "done");
  const json wild = points().at("wild_e4_k1_g1_one_s1");
  EXPECT_EQ(wild.at("status"), "failed");
  EXPECT_THAT(wild.at("error").get<std::string>(), HasSubstr("is not applied"));
  EXPECT_EQ(run({"--resume"}).code, 1);
}

TEST_F(StudyProgram, TheStudiesOfTheRepositoryPassTheirChecks) {
  int studies = 0;
  for (const auto& entry : std::filesystem::directory_iterator(paths::source("configs/studies"))) {
    if (entry.path().filename() != "base.toml") {
      const Result dry = folder_.orthant({"bench", "expert-scaling", entry.path().string(), "--dry-run", "--set",
                                          "data.path=" + paths::source("CHANGELOG.md")});
      EXPECT_EQ(dry.code, 0) << entry.path() << dry.error;
      ++studies;
    }
  }
  EXPECT_EQ(studies, 4);
}

TEST_F(StudyProgram, GoesOnWithTheSameConfigurationAndTextOnly) {
  write("side_by_side = 1\ntiming_rounds = 0\n", "[[grid]]\nexperts = [1, 4]\n");
  ASSERT_EQ(run({"--only", "base_e1_k1_g1_one_s1"}).code, 0);
  std::string other = base;
  other.replace(other.find("steps = 6"), 9, "steps = 8");
  folder_.write("base.toml", other);
  const Result changed = run({"--resume"});
  EXPECT_EQ(changed.code, 78) << changed.output;
  EXPECT_THAT(changed.error, AllOf(HasSubstr("configuration has changed"), HasSubstr("/run/steps")));
  folder_.write("base.toml", base);
  const std::string text = launch_test::read_file(folder_.path("text.txt"));
  folder_.write("text.txt", text + "!");
  const Result retold = run({"--resume"});
  EXPECT_EQ(retold.code, 78) << retold.output;
  EXPECT_THAT(retold.error, HasSubstr("the study's text is another one now"));
  folder_.write("text.txt", text);
  EXPECT_EQ(run({"--resume"}).code, 0);
}

// A result that no study writes is neither kept as done nor an internal error.
TEST_F(StudyProgram, ADamagedPointOfACardIsRefused) {
  write("side_by_side = 1\ntiming_rounds = 0\n", "[[grid]]\nexperts = [1, 4]\n");
  ASSERT_EQ(run().code, 0);
  const json whole = card();
  const auto refusal = [&](const std::string& place, const json& value) {
    json damaged = whole;
    damaged[json::json_pointer("/points/1" + place)] = value;
    folder_.write("studies/s/study.json", damaged.dump());
    const Result result = run({"--resume"});
    EXPECT_EQ(result.code, 78) << place << value << result.output;
    EXPECT_THAT(result.error, HasSubstr("base_e4_k1_g1_one_s1")) << place << value;
    return result.error;
  };
  EXPECT_THAT(refusal("/result", nullptr), HasSubstr("its 'result' is null"));
  for (const json& loss : {json(), json(-1.0), json(1e300), json("2"), json(0)}) {
    EXPECT_THAT(refusal("/result/validation_loss", loss), HasSubstr("its 'validation_loss' is " + loss.dump()));
  }
  EXPECT_THAT(refusal("/result/curve", json::array()), HasSubstr("its 'curve' is []"));
  EXPECT_THAT(refusal("/result/curve/0", json::array({1, 2})), HasSubstr("its 'curve' has [1,2]"));
  EXPECT_THAT(refusal("/result/step_seconds", -1), HasSubstr("its 'step_seconds' is -1"));
  EXPECT_THAT(refusal("/status", "almost"), HasSubstr("its 'status' is \"almost\""));
  EXPECT_THAT(refusal("/size", 3), HasSubstr("has the size \"base\" now"));
  // Of the whole card; run again from it, too.
  const auto refusal_of_card = [&](const std::string& place, const json& value) {
    json damaged = whole;
    damaged[json::json_pointer(place)] = value;
    folder_.write("studies/s/study.json", damaged.dump());
    folder_.write("card.json", damaged.dump());
    std::string said;
    for (const Result& result : {run({"--resume"}), folder_.orthant({"bench", "expert-scaling", "card.json"})}) {
      EXPECT_EQ(result.code, 78) << place << value << result.output << result.error;
      said += result.error;
    }
    return said;
  };
  EXPECT_THAT(refusal_of_card("/format", "x"), HasSubstr("is no card of a study"));
  EXPECT_THAT(refusal_of_card("/text/hash", 3), HasSubstr("its 'hash' of 'text' is 3, expected a text"));
  for (const json& value : {json(3), json::array({1})}) {
    EXPECT_THAT(refusal_of_card("/overrides", value), HasSubstr("its 'overrides' is " + value.dump()));
  }
  folder_.write("studies/s/study.json", whole.dump());
  EXPECT_EQ(run({"--resume"}).code, 0);
}

// --set comes behind what the study itself sets, here and where the card is run again.
TEST_F(StudyProgram, ACardRemembersWhatItWasMadeWith) {
  write("side_by_side = 1\ntiming_rounds = 0\n",
        "[[size]]\nname = \"s\"\nset = [\"run.steps=6\"]\n[[grid]]\nexperts = [4]\n");
  ASSERT_EQ(run({"--set", "run.steps=4"}).code, 0);
  const auto before = points();
  EXPECT_EQ(before.at("s_e4_k1_g1_one_s1").at("steps"), 4);
  std::filesystem::rename(study("study.json"), folder_.path("card.json"));
  std::filesystem::remove_all(study());
  ASSERT_EQ(folder_.orthant({"bench", "expert-scaling", "card.json"}).code, 0);
  EXPECT_EQ(points().at("s_e4_k1_g1_one_s1").at("result").at("curve"),
            before.at("s_e4_k1_g1_one_s1").at("result").at("curve"));
  EXPECT_EQ(points().at("s_e4_k1_g1_one_s1").at("set"), before.at("s_e4_k1_g1_one_s1").at("set"));
}

// In the first step nothing is learnt yet: what a dropless run says of a capacity is what a run with it drops.
TEST_F(StudyProgram, ADroplessPointSaysWhatItWouldHaveDropped) {
  write("side_by_side = 2\ntiming_rounds = 0\nset = [\"run.steps=1\"]\ncounterfactual = [0.5, 1.0]\n",
        "[[grid]]\nexperts = [1, 4]\ncapacity_factor = [0, 0.5, 1.0]\n");
  const Result done = run();
  ASSERT_EQ(done.code, 0) << done.output << done.error;
  const auto all = points();
  EXPECT_FALSE(all.at("base_e1_k1_g1_one_s1").at("result").contains("counterfactual"));
  const json said = all.at("base_e4_k1_g1_one_s1").at("result").at("counterfactual");
  EXPECT_EQ(said[0][1], all.at("base_e4_k1_g1_c0.5_one_s1").at("result").at("drop_rate"));
  EXPECT_EQ(said[1][1], all.at("base_e4_k1_g1_c1_one_s1").at("result").at("drop_rate"));
  EXPECT_GT(said[0][1], 0.3);
  EXPECT_LT(said[1][1], said[0][1]);
}

// The layout changes nothing: one curve, whatever the ranks.
TEST_F(StudyProgram, APointHasOneCurveOnAnyNumberOfRanks) {
  write("side_by_side = 2\ntiming_rounds = 0\n",
        "[[layout]]\nname = \"r1\"\n[[layout]]\nname = \"r2\"\nset = [\"plugins.data.size=2\", "
        "\"plugins.expert.size=2\"]\n"
        "[[grid]]\nexperts = [4]\n");
  const Result done = run();
  ASSERT_EQ(done.code, 0) << done.output << done.error;
  const json one = points().at("base_e4_k1_g1_r1_s1").at("result").at("curve");
  const json two = points().at("base_e4_k1_g1_r2_s1").at("result").at("curve");
  ASSERT_EQ(one.size(), two.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(one[i][2].get<double>(), two[i][2].get<double>(), 1e-5);
  }
}

}  // namespace
}  // namespace orthant::study_program_test
