// memory.keep_micro_batches: some micro-batches in flight keep all their activations, the others compute them again. No
// bit changes, under any schedule, beside any axis, with activations elsewhere, and a stage holds as much more as the
// micro-batches that keep.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "core/dry_run/promise.h"
#include "parallel/local/thread_world.h"
#include "tests/support/parity.h"
#include "tests/support/paths.h"

namespace orthant::keep_micro_batches_test {
namespace {

using test::experiment;
using test::joined;
using test::Overrides;

Overrides keeping(const char* recompute, int keep) {
  return {fmt::format(R"(memory.recompute="{}")", recompute), fmt::format("memory.keep_micro_batches={}", keep)};
}

struct Layout {
  const char* name;
  Overrides overrides;
  std::string plugins;
};
void PrintTo(const Layout& layout, std::ostream* out) {
  *out << layout.name;
}

std::string pipeline(int size, const std::string& schedule = "1f1b", int chunks = 1) {
  return fmt::format("[plugins.pipeline]\nsize = {}\nschedule = \"{}\"\nchunks = {}\n", size, schedule, chunks);
}
const std::string zero3 = "[plugins.data]\nsize = 2\nzero = 3\nwhole_below = 0\n",
                  expert = "[plugins.expert]\nsize = 2\n",
                  tensor = "[plugins.tensor]\nsize = 2\nsequence_parallel = true\n";

const Layout layouts[] = {
    {"one_rank", {"batch.micro_batch=2"}, ""},
    {"one_forward_one_backward",
     {"model.layers=4", "model.dropout=0.2", "moe.jitter=0.2", "moe.shared_experts=1"},
     pipeline(4)},
    {"gpipe_tied", {"model.layers=3", "model.tie_embeddings=true", "moe.every=2"}, pipeline(2, "gpipe")},
    {"interleaved", {"model.layers=4", "moe.every=2", "moe.capacity_factor=1.0"}, pipeline(2, "interleaved", 2)},
    {"one_stage_of_chunks", {"batch.micro_batch=2"}, pipeline(1, "interleaved", 2)},
    {"bf16", {R"(run.dtype="bf16")", "model.layers=3"}, pipeline(3)},
    {"experts", {"model.layers=3", "moe.shared_experts=1"}, pipeline(2) + test::axes(2, 2)},
    {"layered", {"batch.micro_batch=2"}, zero3 + "layered = true\n"},
    {"zero_tensor_expert", {"model.layers=3", "batch.micro_batch=2"}, pipeline(2) + zero3 + tensor + expert},
};

class KeepMicroBatches : public testing::TestWithParam<Layout> {};

TEST_P(KeepMicroBatches, ChangesNoBit) {
  const Layout& layout = GetParam();
  const Overrides overrides = joined({"batch.micro_batch=1"}, layout.overrides);
  const Snapshot none = take_snapshot(experiment(overrides, layout.plugins), 2);
  for (const char* recompute : {"selective", "full"}) {
    for (int keep : {1, 2}) {
      SCOPED_TRACE(fmt::format("{}, {} keep", recompute, keep));
      const Overrides with = joined(overrides, keeping(recompute, keep));
      test::expect_same_bits(take_snapshot(experiment(with, layout.plugins), 2), none);
    }
  }
}

// What is kept is put elsewhere and taken back, by a stash of a plugin out of tree and by `offload`.
TEST_P(KeepMicroBatches, ChangesNoBitBesideAStash) {
  const Layout& layout = GetParam();
  const Overrides overrides = joined({"batch.micro_batch=1"}, layout.overrides);
  const Snapshot none = take_snapshot(experiment(overrides, layout.plugins), 2);
  const std::pair<const char*, std::string> stashes[] = {
      {"late", fmt::format("[plugins.activation_offload]\npath = \"{}\"\nleast_bytes = 0\n",
                           paths::out_of_tree("activation_offload"))},
      {"late_sides", "[plugins.offload]\nactivations = \"host\"\nstates = \"host\"\n"},
      {"guarded", fmt::format("[plugins.offload]\nactivations = \"nvme\"\ndirectory = \"{}\"\n", testing::TempDir())},
  };
  for (const auto& [device, tables] : stashes) {
    SCOPED_TRACE(fmt::format("{}\n{}", device, tables));
    Config config = experiment(joined(overrides, keeping("full", 1)), layout.plugins + tables);
    config.settings.run.device = device;
    test::expect_same_bits(take_snapshot(config, 2), none);
  }
}

INSTANTIATE_TEST_SUITE_P(Parity, KeepMicroBatches, testing::ValuesIn(layouts),
                         [](const auto& layout) { return layout.param.name; });

TEST(KeepMicroBatches, LayoutsEqualOneRank) {
  for (const std::string& plugins :
       {pipeline(2) + test::axes(2, 2), pipeline(2, "interleaved", 2) + test::axes(2, 2)}) {
    test::expect_parity({"model.layers=4", "moe.every=2"}, plugins,
                        {.only_here = joined({"batch.micro_batch=1"}, keeping("full", 2))});
  }
}

// Of the rank that held most.
std::int64_t measured_peak(const Config& config) {
  std::mutex mutex;
  std::int64_t most = 0;
  run_threads(check_layout(config), [&](Communicator& communicator) {
    test::TestRank rank(config, communicator);
    rank.trainer().step(0);
    rank.trainer().step(1);
    const std::lock_guard lock(mutex);
    most = std::max(most, rank.stream().device().memory().peak_bytes);
  });
  return most;
}

// GPipe: all six micro-batches are in flight when the first backward begins. Each one that keeps adds the same to what
// is planned, and no run holds more than was promised.
TEST(KeepMicroBatches, EachThatKeepsTakesEquallyMuch) {
  const Overrides overrides = {"model.layers=4", "moe.experts=0", "batch.sequences=12", "batch.micro_batch=2",
                               "data.sequence_length=32"};
  std::vector<std::int64_t> planned;
  for (int keep = 0; keep <= 5; ++keep) {
    const Config config = experiment(joined(overrides, keeping("full", keep)), pipeline(2, "gpipe"));
    planned.push_back(plan_rank(config, 0).memory.peak);
    const std::int64_t promised = memory_need(config).worst, measured = measured_peak(config);
    EXPECT_LE(measured, promised) << keep;
    EXPECT_GE(static_cast<double>(measured), 0.85 * static_cast<double>(promised)) << keep;
  }
  const std::int64_t each = planned[2] - planned[1], row_bytes = 16 * 4, rows = 2 * 32;
  EXPECT_GT(each, 2 * 8 * rows * row_bytes) << "two blocks, and more than eight numbers beside each of their inputs";
  for (std::size_t keep = 3; keep < planned.size(); ++keep) {
    EXPECT_EQ(planned[keep] - planned[keep - 1], each) << keep;
  }
}

}  // namespace
}  // namespace orthant::keep_micro_batches_test
