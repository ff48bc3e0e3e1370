// A checkpoint of any layout of the table loads into any other: the same gathered state in every bit, and the same
// loss.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <orthant/random.h>

#include "core/run/saving.h"
#include "parallel/local/thread_world.h"
#include "tests/parity/layouts.h"
#include "tests/support/program.h"

namespace orthant::checkpoints_test {
namespace {

namespace fs = std::filesystem;
using test::TableCell;
using test::TestRank;

constexpr int pairs = 40;

// What one experiment is trained as: layouts on at most eight ranks, each of which can be drawn.
std::vector<TableCell> candidates() {
  std::vector<TableCell> cells;
  for (const test::TableLayout& layout : test::all_layouts(8)) {
    TableCell cell{layout, {"checkpoints", {"model.tie_embeddings=true"}}};
    if (!refusal_of(cell).has_value()) {
      cells.push_back(std::move(cell));
    }
  }
  return cells;
}

struct Pair {
  int number;
  TableCell saves, loads;
  std::string name() const {
    return fmt::format("{:02}__{}__to__{}", number, saves.layout.name(), loads.layout.name());
  }
};

void PrintTo(const Pair& pair, std::ostream* out) {
  *out << pair.name();
}

std::vector<Pair> drawn_pairs() {
  const std::vector<TableCell> cells = candidates();
  const RandomKey key{.seed = 24};
  std::vector<Pair> drawn;
  for (int i = 0; i < pairs; ++i) {
    const std::uint64_t at = 2 * static_cast<std::uint64_t>(i);
    drawn.push_back({i, cells[below(key, at, cells.size())], cells[below(key, at + 1, cells.size())]});
  }
  return drawn;
}

struct Result {
  fs::path folder;
  double next_loss = 0;  // of step 2, not applied
};

// Ranks that begin with the checkpoint `from`, or train two steps where there is none; they save and look one step
// ahead.
Result run(const Config& config, int ranks, const fs::path& from, const fs::path& to) {
  Result result;
  std::mutex mutex;
  run_threads(ranks, [&](Communicator& communicator) {
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
      result = {folder, loss};
    }
  });
  return result;
}

class Checkpoints : public testing::TestWithParam<Pair> {};

TEST_P(Checkpoints, OfAnyLayoutLoadIntoAnyOther) {
  const auto& [number, saves, loads] = GetParam();
  const run_test::ProgramFolder folder;
  const Result first = run(saves.config(), saves.layout.ranks(), {}, folder.path("first"));
  const Result second = run(loads.config(), loads.layout.ranks(), first.folder, folder.path("second"));
  EXPECT_THAT(run_test::differences(first.folder, second.folder), testing::IsEmpty());
  EXPECT_NEAR(second.next_loss, first.next_loss, 1e-6 * first.next_loss);
}

INSTANTIATE_TEST_SUITE_P(Parity, Checkpoints, testing::ValuesIn(drawn_pairs()),
                         [](const auto& pair) { return pair.param.name(); });

}  // namespace
}  // namespace orthant::checkpoints_test
