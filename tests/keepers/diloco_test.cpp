// DiLoCo: workers that take an outer step together now and then.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/dry_run/planning.h"
#include "tests/keepers/plugins.h"
#include "tests/support/error_of.h"
#include "tests/support/program.h"

namespace orthant::keepers_test::diloco_test {
namespace {

using run_test::ProgramFolder;
using test::experiment;
using testing::HasSubstr;
using Values = std::vector<float>;

std::string diloco(int workers, int every, const std::string& more = "") {
  return fmt::format("[plugins.diloco]\nsize = {}\nevery = {}\n{}", workers, every, more);
}

// Within a worker.
struct Case {
  const char* name;
  std::string plugins;
};
const Case within[] = {
    {"alone", ""},
    {"zero1", "[plugins.data]\nsize = 2\nzero = 1\n"},
    {"zero3", "[plugins.data]\nsize = 2\nzero = 3\nwhole_below = 0\n"},
    {"expert", "[plugins.data]\nsize = 2\n[plugins.expert]\nsize = 2\n"},
    {"tensor", "[plugins.tensor]\nsize = 2\nsequence_parallel = true\n"},
    {"pipeline", "[plugins.pipeline]\nsize = 2\n"},
};
const test::Overrides tied = {"model.tie_embeddings=true"};

// Two outer steps after two steps each, by hand from the weights that workers alone come to.
TEST(Diloco, OuterStepsAreNesterovs) {
  const ProgramFolder folder;
  const std::string keys = "outer_lr = 0.6\nouter_momentum = 0.8\n";
  const double lr = 0.6, momentum = 0.8;
  const Config apart = experiment({}, diloco(2, 100, keys)), together = experiment({}, diloco(2, 2, keys));
  const Values start = pass_through(apart, {}, 0, 0, folder.path("start")).weights[0];
  const Passed first_apart = pass_through(apart, {}, 0, 2, folder.path("first_apart"));
  const Passed first = pass_through(together, {}, 0, 2, folder.path("first"));
  const Passed second_apart = pass_through(apart, first.saved, 2, 4, folder.path("second_apart"));
  const Passed second = pass_through(together, first.saved, 2, 4, folder.path("second"));
  std::vector<double> anchor(start.begin(), start.end()), velocity(start.size(), 0);
  for (const auto& [moved, found] : {std::pair{&first_apart, &first}, std::pair{&second_apart, &second}}) {
    EXPECT_EQ(found->weights[0], found->weights[1]) << "workers begin again from one model";
    EXPECT_NE(moved->weights[0], moved->weights[1]);
    Values expected(start.size());
    for (std::size_t i = 0; i < start.size(); ++i) {
      const double mean = (static_cast<double>(moved->weights[0][i]) + static_cast<double>(moved->weights[1][i])) / 2;
      const double d = anchor[i] - mean;
      velocity[i] = momentum * velocity[i] + d;
      anchor[i] -= lr * (momentum * velocity[i] + d);
      expected[i] = static_cast<float>(anchor[i]);
    }
    EXPECT_LT(test::relative_difference(found->weights[0], expected), 1e-6);
  }
}

TEST(Diloco, OfRateOneWithoutMomentumIsTheMean) {
  const ProgramFolder folder;
  const std::string plain = "outer_lr = 1.0\nouter_momentum = 0.0\n";
  const Passed mean =
      pass_through(experiment({}, table("local_sgd", "size = 2\nevery = 2\n")), {}, 0, 2, folder.path("mean"));
  for (const auto& [exchange, tolerance] : {std::pair{"", 1e-6}, std::pair{"exchange = \"int8\"\n", 1e-3}}) {
    const Passed found = pass_through(experiment({}, diloco(2, 2, plain + exchange)), {}, 0, 2, folder.path("outer"));
    EXPECT_EQ(found.weights[0], found.weights[1]) << exchange;
    EXPECT_LT(test::relative_difference(found.weights[0], mean.weights[0]), tolerance) << exchange;
  }
}

TEST(Diloco, ResumesBitForBit) {
  for (const Case& c : within) {
    expect_resumes(experiment(tied, diloco(2, 2, "fragments = 2\nexchange = \"int8\"\n") + c.plugins), 3, 5, c.name);
  }
}

// Bytes beside those of a step without an exchange.
TEST(Diloco, FragmentsTakeTheirTurns) {
  const auto sent = [&](const std::string& more, std::int64_t step) {
    const Config config = experiment({}, diloco(2, 4, more));
    return bytes_sent(plan_rank(config, 0, step).step) - bytes_sent(plan_rank(config, 0, 0).step);
  };
  const std::int64_t all = sent("", 3);
  EXPECT_GT(all, 0);
  EXPECT_EQ(sent("", 2), 0);
  const std::string two = "fragments = 2\n";
  EXPECT_EQ(sent(two, 2), 0);
  EXPECT_GT(sent(two, 1), 0);
  EXPECT_GT(sent(two, 3), 0);
  EXPECT_EQ(sent(two, 1) + sent(two, 3), all);
  EXPECT_LT(sent("exchange = \"int8\"\n", 3), all / 3);
}

TEST(Diloco, RefusesMoreTurnsThanSteps) {
  EXPECT_THAT(test::refusal({}, diloco(2, 2, "fragments = 3\n")), HasSubstr("3 turns do not fit into 2 steps"));
}

}  // namespace
}  // namespace orthant::keepers_test::diloco_test
