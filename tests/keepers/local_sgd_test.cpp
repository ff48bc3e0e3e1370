// Workers that train apart and average their weights now and then, built out of tree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/dry_run/planning.h"
#include "tests/keepers/plugins.h"
#include "tests/support/program.h"

namespace orthant::keepers_test::local_sgd_test {
namespace {

using run_test::ProgramFolder;
using test::experiment;
using testing::IsEmpty;

std::string local_sgd(int workers, int every) {
  return table("local_sgd", fmt::format("size = {}\nevery = {}\n", workers, every));
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
    {"pipeline", "[plugins.pipeline]\nsize = 2\n[plugins.data]\nsize = 2\nzero = 1\n"},
};
const test::Overrides tied = {"model.tie_embeddings=true"};
const test::Overrides sgd = {R"(optimizer.name="sgd")", R"(optimizer.schedule="constant")", "optimizer.momentum=0.0",
                             "optimizer.clip_grad_norm=0.0", "model.tie_embeddings=true"};

// The mean of the workers' steps is the step along the mean gradient.
TEST(LocalSgd, EveryStepWithSgdIsOneRank) {
  const Snapshot& one = test::reference_of(sgd, 3);
  for (const Case& c : within) {
    const Snapshot workers = take_snapshot(experiment(sgd, local_sgd(2, 1) + c.plugins), 3);
    for (const auto& [name, values] : one.state) {
      if (name.starts_with("weight/")) {
        EXPECT_LT(test::relative_difference(workers.state.at(name), values), 1e-5) << c.name << " " << name;
      }
    }
    EXPECT_THAT(workers.replica_differences, IsEmpty()) << c.name;
  }
}

TEST(LocalSgd, ThePlanOfTheFourthStepHasTheAverage) {
  const Config config = experiment({}, local_sgd(2, 4));
  const auto sent = [&](std::int64_t step) { return bytes_sent(plan_rank(config, 0, step).step); };
  EXPECT_EQ(sent(0), sent(2));
  EXPECT_GT(sent(3), sent(0));
  EXPECT_EQ(sent(4), sent(0));
}

// Two workers by hand: each takes its half of the batch on one rank alone. Between averages they are strangers, and
// what stands in the checkpoint under worker1/ is the second one's.
TEST(LocalSgd, WorkersAreStrangersBetweenAverages) {
  const ProgramFolder folder;
  const Passed apart = pass_through(experiment({}, local_sgd(2, 100)), {}, 0, 2, folder.path("apart"));
  EXPECT_NE(apart.weights[0], apart.weights[1]);
  const Passed averaged = pass_through(experiment({}, local_sgd(2, 2)), {}, 0, 2, folder.path("averaged"));
  EXPECT_EQ(averaged.weights[0], averaged.weights[1]);
  std::vector<float> mean(apart.weights[0].size());
  for (std::size_t i = 0; i < mean.size(); ++i) {
    mean[i] = 0.5f * (apart.weights[0][i] + apart.weights[1][i]);
  }
  EXPECT_LT(test::relative_difference(averaged.weights[0], mean), 1e-7);
  const CheckpointReader reader(apart.saved);
  EXPECT_TRUE(reader.has("worker1/lm_head.weight") && reader.has("lm_head.weight"));
}

// Half of the batch, trained by one rank alone, is what a worker does: its scales, its norm, its clipping.
TEST(LocalSgd, AWorkerIsARunOfItsOwn) {
  const test::Overrides clipped = {R"(optimizer.name="sgd")", "optimizer.clip_grad_norm=0.05"};
  test::Overrides half = clipped;
  half.push_back("batch.sequences=4");
  const Config config = experiment(half);
  const ProgramFolder folder;
  const Passed alone = pass_through(config, {}, 0, 1, folder.path("alone"));
  const Passed workers =
      pass_through(experiment(clipped, local_sgd(2, 100) + within[1].plugins), {}, 0, 1, folder.path("two"));
  EXPECT_NEAR(workers.losses[0], alone.losses[0], 1e-6 * alone.losses[0]);
  const CheckpointReader a(alone.saved), b(workers.saved);
  for (const std::string& name : a.names()) {
    std::vector<std::int64_t> begin, size;
    const Shape shape = a.info(name).shape;
    for (int i = 0; i < shape.rank(); ++i) {
      begin.push_back(0);
      size.push_back(shape[i]);
    }
    std::vector<float> x(shape.elements()), y(x.size());
    a.read(name, begin, size, x.data());
    b.read(name, begin, size, y.data());
    EXPECT_LT(test::relative_difference(y, x), 1e-5) << name;
  }
}

TEST(LocalSgd, ResumesBitForBit) {
  for (const Case& c : within) {
    expect_resumes(experiment(tied, local_sgd(2, 3) + c.plugins), 2, 4, c.name);
  }
}

// Workers that a checkpoint does not have begin as its first one.
TEST(LocalSgd, AnyNumberOfWorkersReadsAnyCheckpoint) {
  const ProgramFolder folder;
  const Passed one = pass_through(experiment(), {}, 0, 1, folder.path("one"));
  const Passed two = pass_through(experiment({}, local_sgd(2, 100)), one.saved, 1, 1, folder.path("two"));
  EXPECT_EQ(two.weights[0], one.weights[0]);
  EXPECT_EQ(two.weights[1], one.weights[0]);
  const Passed trained = pass_through(experiment({}, local_sgd(2, 100)), two.saved, 1, 2, folder.path("trained"));
  const Passed again = pass_through(experiment(), trained.saved, 2, 2, folder.path("again"));
  EXPECT_EQ(again.weights[0], trained.weights[0]);
}

}  // namespace
}  // namespace orthant::keepers_test::local_sgd_test
