// A study's file and the points that it stands for.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "bench/study/grid.h"
#include "bench/study/study_file.h"
#include "tests/support/error_of.h"
#include "tests/support/program.h"

namespace orthant::study_grid_test {
namespace {

using run_test::ProgramFolder;
using test::error_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* base =
    "[run]\nsteps = 4\nvalidate_every = 2\n[data]\npath = [\"text.txt\"]\nsequence_length = 16\n[batch]\nsequences = "
    "4\n"
    "[model]\nlayers = 2\nd_model = 16\nheads = 2\nd_ff = 48\nactivation = \"swiglu\"\n"
    "[moe]\nexperts = 8\nrouter = \"topk\"\n";

class StudyGridTest : public testing::Test {
 protected:
  StudyGridTest() { folder_.write("base.toml", base); }

  StudyFile read(const std::string& text) {
    folder_.write("study.toml", text);
    return read_study(folder_.path("study.toml").string());
  }
  std::vector<GridPoint> points(const std::string& text, const std::vector<std::string>& overrides = {}) {
    return make_points(read("[study]\nname = \"s\"\nconfig = \"base.toml\"\n" + text), overrides);
  }
  static std::vector<std::string> ids(const std::vector<GridPoint>& points) {
    std::vector<std::string> all;
    for (const GridPoint& point : points) {
      all.push_back(point.id);
    }
    return all;
  }

  ProgramFolder folder_;
};

TEST_F(StudyGridTest, EveryProblemOfAFileIsToldWithItsPlace) {
  const std::string error = error_of([&] {
    read(
        "[study]\nname = \"a/b\"\nsteps = 3\n[[size]]\nname = \"s\"\nlayers = 2\n[[size]]\nname = \"s\"\n"
        "[[grid]]\nsizes = [\"t\"]\nexpert = [1]\n[learning_rte]\nlr = 1\n");
  });
  EXPECT_THAT(error, AllOf(HasSubstr("study.toml:2:8"), HasSubstr("[study] has no key 'steps'"),
                           HasSubstr("[study] needs config"), HasSubstr("[size] has no key 'layers'"),
                           HasSubstr("[[size]] 's' is there twice"), HasSubstr("there is no [[size]] 't'")));
  EXPECT_THAT(error, AllOf(HasSubstr("did you mean 'experts'?"), HasSubstr("did you mean [learning_rate]?"),
                           HasSubstr("[[grid]] needs experts or experts_per_rank")));
  EXPECT_THAT(error_of([&] {
                read("[study]\nname = \"s\"\nconfig = \"base.toml\"\ntiming_rounds = -1\n[[grid]]\nexperts = [0]\n");
              }),
              AllOf(HasSubstr("[study] timing_rounds"), HasSubstr("[grid] experts")));
  EXPECT_THAT(error_of([&] { read("[study"); }), HasSubstr("study.toml:1"));
  EXPECT_THAT(error_of([&] { read_study("nowhere.toml"); }), HasSubstr("there is no such file"));
}

TEST_F(StudyGridTest, ADenseTwinIsThereOnceWhateverTheRouter) {
  EXPECT_THAT(
      ids(points("[[grid]]\nexperts = [1, 4]\ntop_k = [1, 2]\nseeds = [1, 2]\ncapacity_factor = [0, 1.25]\n")),
      ElementsAre("base_e1_k1_g1_one_s1", "base_e1_k1_g1_one_s2", "base_e4_k1_g1_one_s1", "base_e4_k1_g1_c1.25_one_s1",
                  "base_e4_k2_g1_one_s1", "base_e4_k2_g1_c1.25_one_s1", "base_e4_k1_g1_one_s2",
                  "base_e4_k1_g1_c1.25_one_s2", "base_e4_k2_g1_one_s2", "base_e4_k2_g1_c1.25_one_s2"));
  EXPECT_EQ(points("[[grid]]\nexperts = [1, 4]\n[[grid]]\nexperts = [4, 1]\n").size(), 2u);
}

TEST_F(StudyGridTest, CapacityFactorsHaveAllTheirDigitsInAFolderName) {
  EXPECT_THAT(ids(points("[[grid]]\nexperts = [4]\ncapacity_factor = [1.0, 1.0000001, 1e20]\n")),
              ElementsAre("base_e4_k1_g1_c1_one_s1", "base_e4_k1_g1_c1.0000001_one_s1", "base_e4_k1_g1_c1e20_one_s1"));
}

TEST_F(StudyGridTest, AnEmptyListIsRefused) {
  const std::string error = error_of([&] {
    read(
        "[study]\nname = \"s\"\nconfig = \"base.toml\"\n"
        "[[grid]]\nexperts = [4]\nseeds = []\ntop_k = []\ngranularity = []\ncapacity_factor = []\n");
  });
  for (const std::string key : {"seeds", "top_k", "granularity", "capacity_factor"}) {
    EXPECT_THAT(error, HasSubstr("[[grid]] " + key + " is an empty list"));
  }
}

// Counted by hand: d 16, two layers, 48 channels of a gated FFN, 16 positions, 256 tokens.
TEST_F(StudyGridTest, PointsCostTheSameAndTheRouterIsCountedApart) {
  const std::vector<GridPoint> all = points("[[grid]]\nexperts = [1, 8]\ntop_k = [1, 2]\ngranularity = [1, 3]\n");
  ASSERT_EQ(all.size(), 5u);
  const double ffn = 2 * 3 * 16 * 48, projections = 2 * 4 * 16 * 16, head = 2 * 16 * 256;
  const double scores = 2 * 2 * 16 * 8.5;  // a token meets half a sequence, and itself
  for (const GridPoint& point : all) {
    EXPECT_NEAR(point.model_flops, 3 * (2 * (ffn + projections + scores) + head), 3 * 2 * 2 * 2 * 16) << point.id;
    EXPECT_EQ(point.model_flops, all[0].model_flops) << point.id;
    EXPECT_EQ(point.tokens, 4 * 4 * 16);
  }
  EXPECT_EQ(all[0].router_flops, 0);
  EXPECT_EQ(all[1].router_flops, 3 * 2 * 2 * 16 * 8);
  EXPECT_EQ(all[2].id, "base_e8_k1_g3_one_s1");
  EXPECT_EQ(all[2].router_flops, 3 * all[1].router_flops);
  EXPECT_EQ(all[4].id, "base_e8_k2_g3_one_s1");
  EXPECT_THAT(all[4].set, testing::IsSupersetOf({"moe.experts=24", "moe.top_k=6", "moe.d_expert=8"}));
  // Rows of 16 floats, six of a token, in two layers, to experts and back, forward and backward.
  EXPECT_EQ(all[4].dispatch_bytes, 6 * 16 * 4 * 2 * 4);
  // What a token does not choose is all that a mixture has more than the twin, but for the router.
  const std::int64_t expert = 3 * 16 * 48, router = 16 * 8;
  EXPECT_EQ(all[1].total_parameters - all[0].total_parameters, 2 * (7 * expert + router));
  EXPECT_EQ(all[1].active_parameters - all[0].active_parameters, 2 * router);
}

TEST_F(StudyGridTest, BiasesOfExpertsThatATokenDoesNotChooseAreIdle) {
  const auto parameters = [&](const std::vector<std::string>& set) {
    const GridPoint point = points("[[grid]]\nexperts = [8]\n", set).at(0);
    return std::pair(point.total_parameters, point.active_parameters);
  };
  const auto [total, active] = parameters({"model.activation=\"clamped_swiglu\""});
  const auto [with_biases, active_with] = parameters({"model.activation=\"clamped_swiglu\"", "moe.expert_bias=true"});
  const std::int64_t biases = 48 + 48 + 16;  // of an expert: gate, up and down
  EXPECT_EQ(with_biases - total, 2 * 8 * biases);
  EXPECT_EQ(active_with - active, 2 * biases);
}

TEST_F(StudyGridTest, WhatWouldNotCostTheSameIsRefused) {
  EXPECT_THAT(
      error_of([&] { points("[[grid]]\nexperts = [8]\ntop_k = [5]\n"); }),
      AllOf(HasSubstr("1 of the points cannot run"), HasSubstr("base_e8_k5_g1_one_s1"), HasSubstr("its width 48")));
  EXPECT_THAT(error_of([&] { points("[[grid]]\nexperts = [1, 8]\n", {"moe.d_expert=16"}); }),
              HasSubstr("points of a study must cost the same"));
  EXPECT_THAT(error_of([&] { points("[[size]]\nname = \"s\"\nset = [\"model.heds=3\"]\n[[grid]]\nexperts = [1]\n"); }),
              AllOf(HasSubstr("point s_e1_k1_g1_one"), HasSubstr("did you mean 'heads'?")));
}

TEST_F(StudyGridTest, WithoutValidationNoPointHasAResult) {
  EXPECT_THAT(error_of([&] { points("[[grid]]\nexperts = [1, 8]\n", {"run.validate_every=0"}); }),
              AllOf(HasSubstr("2 of the points cannot run"), HasSubstr("run.validate_every = 0")));
  EXPECT_THAT(error_of([&] {
                points("[[grid]]\nexperts = [1, 8]\n", {"batch.grow_after=[2]", "batch.grow_to=[8]"});
              }),
              HasSubstr("batch.grow_to: the points of a study are timed by steps of one size"));
}

TEST_F(StudyGridTest, AStudyIsNamedAsAFolderBelowItsDirectory) {
  for (const char* name : {".", "..", "../up", "a/b", "/tmp/x", ".hidden", ""}) {
    EXPECT_THAT(error_of([&] {
                  read(fmt::format("[study]\nname = \"{}\"\nconfig = \"base.toml\"\n[[grid]]\nexperts = [1]\n", name));
                }),
                AllOf(HasSubstr("study.toml:2:8"), HasSubstr("cannot stand in the name of a folder")))
        << name;
  }
}

TEST_F(StudyGridTest, WhatTheStudySetsItselfIsRefusedInItsSettings) {
  const std::string grid = "[[grid]]\nexperts = [1, 8]\n";
  for (const char* set :
       {"run.seed=3", "run.name=\\\"x\\\"", "run.directory=\\\"x\\\"", "moe.experts=2", "moe.top_k=2",
        "moe.capacity_factor=1.5", "moe.d_expert=16", "run.threads=1", "run.keep=3", " run . seed = 3"}) {
    const std::string list = fmt::format("set = [\"{}\"]\n", set);
    EXPECT_THAT(error_of([&] { points(list + grid); }), AllOf(HasSubstr("[study] set"), HasSubstr("leave it out")))
        << set;
    EXPECT_THAT(error_of([&] { points("[[size]]\nname = \"s\"\n" + list + grid); }), HasSubstr("[[size]] 's' set"))
        << set;
    EXPECT_THAT(error_of([&] { points("[[layout]]\nname = \"s\"\n" + list + grid); }), HasSubstr("[[layout]] 's' set"))
        << set;
  }
  EXPECT_THAT(error_of([&] { points(grid, {"run.seed=3"}); }), AllOf(HasSubstr("--set"), HasSubstr("[[grid]] seeds")));
  for (const char* table : {"run={seed=3}", "moe = {experts=2}"}) {
    EXPECT_THAT(error_of([&] { points(grid, {table}); }), AllOf(HasSubstr("--set"), HasSubstr("one by one"))) << table;
  }
  const std::string rate = "[[size]]\nname = \"s\"\nset = [\"optimizer.lr=0.1\"]\n" + grid;
  EXPECT_EQ(points(rate).size(), 2u);
  EXPECT_THAT(error_of([&] { points("[learning_rate]\nlr = 0.004\nd_model = 16\n" + rate); }),
              AllOf(HasSubstr("optimizer.lr"), HasSubstr("[learning_rate]")));
}

TEST_F(StudyGridTest, MorePointsThanAreMeantAreRefused) {
  const std::string grid = "[[grid]]\nexperts = [1, 8]\nseeds = [1, 2]\n";
  EXPECT_THAT(error_of([&] { points("most_points = 3\n" + grid); }),
              AllOf(HasSubstr("its grids have 4 points"), HasSubstr("most_points = 4")));
  EXPECT_EQ(points("most_points = 4\n" + grid).size(), 4u);
  // 10^12 combinations: nothing is made of them.
  std::string list = "[1";
  for (int i = 2; i <= 1000; ++i) {
    list += fmt::format(", {}", i);
  }
  const std::string wide =
      fmt::format("[[grid]]\nexperts = {0}]\nseeds = {0}]\ntop_k = {0}]\ngranularity = {0}]\n", list);
  EXPECT_THAT(error_of([&] { points(wide); }), HasSubstr("most_points allows 1000"));
}

TEST_F(StudyGridTest, ALearningRateFollowsItsRule) {
  const std::vector<GridPoint> all = points(
      "[learning_rate]\nlr = 0.004\nd_model = 16\nexponent = -0.5\n[[size]]\nname = \"a\"\n[[size]]\nname = \"b\"\n"
      "set = [\"model.d_model=64\"]\n[[grid]]\nexperts = [1, 8]\n");
  ASSERT_EQ(all.size(), 4u);
  EXPECT_THAT(all[0].set, testing::Contains("optimizer.lr=0.004"));
  EXPECT_THAT(all[3].set, testing::Contains("optimizer.lr=0.002"));
}

TEST_F(StudyGridTest, LearningRatesAreAGridOfTheirOwn) {
  const std::string grid = "[[grid]]\nexperts = [1, 8]\ntop_k = [2]\nlr_factor = [0.5, 1, 2]\n";
  const std::vector<GridPoint> ruled = points("[learning_rate]\nlr = 0.004\nd_model = 16\n" + grid);
  EXPECT_THAT(ids(ruled),
              ElementsAre("base_e1_k1_g1_one_lr0.5_s1", "base_e1_k1_g1_one_s1", "base_e1_k1_g1_one_lr2_s1",
                          "base_e8_k2_g1_one_lr0.5_s1", "base_e8_k2_g1_one_s1", "base_e8_k2_g1_one_lr2_s1"));
  EXPECT_THAT(ruled[0].set, testing::Contains("optimizer.lr=0.002"));
  EXPECT_THAT(ruled[5].set, testing::Contains("optimizer.lr=0.008"));
  EXPECT_EQ(ruled[0].shape(), ruled[1].shape()) << "they take as long";
  // Without a rule they multiply the configuration's.
  const std::vector<GridPoint> written = points("set = [\"optimizer.lr=0.01\"]\n" + grid);
  EXPECT_THAT(written[0].set, testing::Contains("optimizer.lr=0.005"));
  EXPECT_THAT(rule_text(read("[study]\nname = \"s\"\nconfig = \"base.toml\"\n" + grid)),
              HasSubstr("tried times 0.5, 1, 2"));
}

TEST_F(StudyGridTest, ExpertsGrowWithTheRanksInWeakScaling) {
  const std::vector<GridPoint> all = points(
      "[[layout]]\nname = \"r1\"\n[[layout]]\nname = \"r2\"\nset = [\"plugins.data.size=2\", "
      "\"plugins.expert.size=2\"]\n"
      "[[grid]]\nexperts_per_rank = [4]\n");
  EXPECT_THAT(ids(all), ElementsAre("base_e4_k1_g1_r1_s1", "base_e8_k1_g1_r2_s1"));
  EXPECT_EQ(all[1].ranks, 2);
}

}  // namespace
}  // namespace orthant::study_grid_test
