// A checkpoint of an encoder loads into other layouts: the same state in every bit, and the same next loss, masks
// included.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "core/run/saving.h"
#include "parallel/local/thread_world.h"
#include "tests/encoder/texts.h"
#include "tests/support/program.h"

namespace orthant::test::encoder_resume_test {
namespace {

namespace fs = std::filesystem;

struct Layout {
  const char* name;
  int ranks;
  std::string plugins;
};

const std::string zero3 = "zero = 3\nwhole_below = 0\n";
const Layout layouts[] = {
    {"one", 1, ""},
    {"data_zero3_expert", 4, axis_table("data", 4, zero3) + axis_table("expert", 2)},
    {"tensor_pipeline", 4, axis_table("tensor", 2) + axis_table("pipeline", 2)},
    {"ring", 2, axis_table("sequence", 2, "method = \"ring\"\n")},
    {"folded", 4, axis_table("tensor", 2, "experts = \"fold\"\n") + axis_table("data", 2) + axis_table("expert", 4)},
};

struct Saved {
  fs::path folder;
  double next_loss = 0;  // of step 2, not applied
};

// Two steps, or from a checkpoint on; then saved.
Saved run(const Layout& layout, const Overrides& model, const fs::path& from, const fs::path& to) {
  const Config config = experiment(model, layout.plugins + plugin_encoder);
  Saved saved;
  std::mutex mutex;
  run_threads(layout.ranks, [&](Communicator& communicator) {
    TestRank rank(config, communicator);
    if (from.empty()) {
      rank.trainer().step(0);
      rank.trainer().step(1);
    } else {
      load_checkpoint(CheckpointReader(from), rank.session().plan(), rank.trainer().parameters(), rank.stream());
    }
    const fs::path folder = save_checkpoint(to, 2, rank.session().plan(), rank.trainer().parameters(), {},
                                            {communicator, rank.trainer().world()}, rank.stream());
    const double loss = rank.trainer().gradients(2).loss;
    const std::lock_guard lock(mutex);
    if (communicator.rank() == 0) {
      saved = {folder, loss};
    }
  });
  return saved;
}

TEST(EncoderCheckpoints, OfEachLayoutLoadIntoTheNext) {
  const std::size_t count = std::size(layouts);
  for (std::size_t i = 0; i < count; ++i) {
    const Layout &saves = layouts[i], &loads = layouts[(i + 1) % count];
    SCOPED_TRACE(fmt::format("{} to {}", saves.name, loads.name));
    const run_test::ProgramFolder folder;
    const Saved first = run(saves, modern_encoder(), {}, folder.path("first"));
    const Saved second = run(loads, modern_encoder(), first.folder, folder.path("second"));
    EXPECT_THAT(run_test::differences(first.folder, second.folder), testing::IsEmpty());
    EXPECT_NEAR(second.next_loss, first.next_loss, 1e-6 * first.next_loss);
  }
}

}  // namespace
}  // namespace orthant::test::encoder_resume_test
