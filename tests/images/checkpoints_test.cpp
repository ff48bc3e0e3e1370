// A checkpoint of one layout of a model of images loads into another: the same state in every bit, the same next loss;
// and a run that is resumed sees the images that it would have seen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "core/run/saving.h"
#include "parallel/local/thread_world.h"
#include "tests/images/experiments.h"
#include "tests/support/program.h"

namespace orthant::test::images_checkpoints_test {
namespace {

namespace fs = std::filesystem;
using namespace images_test;

struct Pair {
  const char* name;
  Overrides model;
  std::string saves, loads;
  int saving, loading;  // ranks
};
void PrintTo(const Pair& pair, std::ostream* out) {
  *out << pair.name;
}

std::string table(const char* name, int size, const std::string& more = "") {
  return fmt::format("[plugins.{}]\nsize = {}\n{}", name, size, more);
}
const std::string zero3 = "zero = 3\nwhole_below = 0\n";

const Overrides moving = {"data.image_padding=2", "data.image_flip=true", "data.shapes=40"};
const Pair pairs[] = {
    {"vit", joined(dense, moving), table("data", 2, zero3), table("tensor", 2) + table("pipeline", 2), 2, 4},
    {"vit_back", joined(dense, moving), table("pipeline", 4), table("sequence", 2), 4, 2},
    {"priority", joined(priority, moving), table("data", 4) + table("expert", 4), table("pipeline", 2), 4, 2},
    {"soft", joined(soft, moving), table("data", 2) + table("expert", 2), table("tensor", 4), 2, 4},
    {"coatnet", joined(convolutions, moving), table("pipeline", 4), table("data", 2, zero3), 4, 2},
};

struct Result {
  fs::path folder;
  double next_loss = 0;  // of step 5, not applied: of the second epoch
};

Result run(const Config& config, int ranks, const fs::path& from, const fs::path& to) {
  Result result;
  std::mutex mutex;
  run_threads(ranks, [&](Communicator& communicator) {
    TestRank rank(config, communicator);
    if (from.empty()) {
      for (int step = 0; step < 5; ++step) {
        rank.trainer().step(step);
      }
    } else {
      load_checkpoint(CheckpointReader(from), rank.session().plan(), rank.trainer().parameters(), rank.stream());
    }
    const fs::path folder = save_checkpoint(to, 5, rank.session().plan(), rank.trainer().parameters(), {},
                                            {communicator, rank.trainer().world()}, rank.stream());
    const double loss = rank.trainer().gradients(5).loss;
    const std::lock_guard lock(mutex);
    if (communicator.rank() == 0) {
      result = {folder, loss};
    }
  });
  return result;
}

class ImageCheckpoints : public testing::TestWithParam<Pair> {};

TEST_P(ImageCheckpoints, LoadIntoAnotherLayout) {
  const Pair& pair = GetParam();
  const run_test::ProgramFolder folder;
  const Overrides small = joined(pair.model, {"batch.micro_batch=2"});
  const Result first = run(experiment(small, pair.saves + plugin), pair.saving, {}, folder.path("first"));
  const Result second = run(experiment(small, pair.loads + plugin), pair.loading, first.folder, folder.path("second"));
  EXPECT_THAT(run_test::differences(first.folder, second.folder), testing::IsEmpty());
  EXPECT_NEAR(second.next_loss, first.next_loss, 1e-6 * first.next_loss);
}
INSTANTIATE_TEST_SUITE_P(Pairs, ImageCheckpoints, testing::ValuesIn(pairs),
                         [](const auto& pair) { return pair.param.name; });

}  // namespace
}  // namespace orthant::test::images_checkpoints_test
