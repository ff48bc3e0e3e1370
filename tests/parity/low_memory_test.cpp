// bf16 weights without a master and optimizer states in 8 bits, in every layout: what is rounded by chance is rounded
// alike wherever an element lies. Against one rank, in every bit where sums keep their order, and through checkpoints,
// which load with any storage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "core/run/saving.h"
#include "parallel/local/thread_world.h"
#include "tests/support/parity.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::low_memory_layouts_test {
namespace {

namespace fs = std::filesystem;
using test::experiment;
using test::joined;
using test::Overrides;
using test::TestRank;

// Rows of two and more blocks, also where two ranks split them.
const Overrides wide = {"model.d_model=64", "model.d_ff=64", "batch.micro_batch=2", "model.vocab_size=24"};
const Overrides in_8_bits = joined(wide, {R"(optimizer.state_dtype="8bit")"});
const Overrides no_master = joined(wide, {R"(run.dtype="bf16")", R"(optimizer.master_weights="none")"});
const Overrides both = joined(no_master, {R"(optimizer.state_dtype="8bit")"});

std::string zero(int stage, int ranks = 2, const std::string& more = "") {
  return fmt::format("[plugins.data]\nsize = {}\nzero = {}\nwhole_below = 0\n{}", ranks, stage, more);
}
std::string out_of_tree(const std::string& name, const std::string& keys = "") {
  return fmt::format("[plugins.{}]\npath = \"{}\"\n{}", name, paths::out_of_tree(name), keys);
}
const std::string pipeline = "[plugins.pipeline]\nsize = 2\n";
const std::string tensor = "[plugins.tensor]\nsize = 2\n";
const std::string expert = "[plugins.expert]\nsize = 2\n";

struct Layout {
  const char* name;
  std::string plugins;
  Overrides overrides = {};
};
void PrintTo(const Layout& layout, std::ostream* out) {
  *out << layout.name;
}
std::string name_of_layout(const testing::TestParamInfo<Layout>& info) {
  return info.param.name;
}

// --- against one rank

// Every token goes to every expert: what is rounded to the other neighbour changes weights by so much that a choice
// between two experts could change with it, and differs from processor to processor.
VerifyReport verified(const Overrides& storage, const Layout& layout) {
  const Overrides all = joined(joined(storage, {"moe.experts=4", "moe.top_k=4"}), layout.overrides);
  return verify(experiment(all, layout.plugins), 3);
}

class EightBits : public testing::TestWithParam<Layout> {};

TEST_P(EightBits, EqualsOneRank) {
  const VerifyReport report = verified(in_8_bits, GetParam());
  EXPECT_TRUE(report.ok()) << test::differences(report);
}

const Layout layouts[] = {
    {"data", "[plugins.data]\nsize = 2\n"},
    {"zero_1", zero(1)},
    {"zero_2_odd", zero(2, 4), {"model.tie_embeddings=true", "model.vocab_size=23"}},
    {"zero_3", zero(3, 4)},
    {"zero_3_hybrid", zero(3, 4, "shard_ranks = 2\n")},
    {"expert", zero(2, 4) + expert},
    {"tensor", tensor},
    {"tensor_cut_rows", "[plugins.tensor]\nsize = 2\nsequence_parallel = true\nexperts = \"fold\"\n"},
    {"tensor_around_zero", tensor + zero(3)},
    {"pipeline_tied", pipeline + zero(1), {"model.tie_embeddings=true"}},
    {"all_axes", pipeline + zero(2) + tensor + expert},
    {"adafactor_zero_2",
     zero(2, 4) + expert + out_of_tree("adafactor", "beta1 = 0.9\n"),
     {R"(optimizer.name="adafactor")"}},
    {"lamb_tensor_around_zero", tensor + zero(3) + out_of_tree("lamb"), {R"(optimizer.name="lamb")"}},
};
INSTANTIATE_TEST_SUITE_P(LowMemory, EightBits, testing::ValuesIn(layouts), name_of_layout);

class Both : public testing::TestWithParam<Layout> {};

TEST_P(Both, EqualsOneRank) {
  for (const Overrides& storage : {no_master, both}) {
    const VerifyReport report = verified(storage, GetParam());
    EXPECT_TRUE(report.ok()) << test::differences(report);
  }
}

const Layout bf16_layouts[] = {
    {"zero_1", zero(1)},
    {"zero_3", zero(3)},
    {"expert", zero(1) + expert},
    {"pipeline", pipeline},
    // Without tensor parallelism: Adafactor's momentum is of updates divided by their root mean square, so that what a
    // sum in another order rounds otherwise in bf16 would weigh as much as a gradient of any size.
    {"adafactor_zero_1",
     zero(1) + out_of_tree("adafactor", "beta1 = 0.9\n"),
     {R"(optimizer.name="adafactor")", R"(optimizer.gradient_dtype="bf16")"}},
};
INSTANTIATE_TEST_SUITE_P(LowMemory, Both, testing::ValuesIn(bf16_layouts), name_of_layout);

// --- where sums keep their order: every bit

class SameBits : public testing::TestWithParam<Layout> {};

TEST_P(SameBits, AsTheLayoutThatSharesNothingOut) {
  const Layout& layout = GetParam();
  const bool piped = layout.plugins.starts_with(pipeline);
  const bool experts = layout.plugins.ends_with(expert);
  const int ranks = layout.plugins.find("size = 4") != std::string::npos ? 4 : 2;
  const std::string whole = piped ? "" : zero(0, ranks) + (experts ? expert : "");
  for (const Overrides& storage : {in_8_bits, no_master, both}) {
    const Overrides overrides = joined(storage, layout.overrides);
    // The norm is a sum of sums by shard.
    test::expect_same_bits(take_snapshot(experiment(overrides, layout.plugins), 3),
                           take_snapshot(experiment(overrides, whole), 3), layout.name, 1e-14);
  }
}

const Layout sharing[] = {
    {"zero_1", zero(1)},
    {"zero_2", zero(2, 4), {"batch.micro_batch=0"}},
    {"zero_3", zero(3, 4), {"batch.micro_batch=0"}},
    {"zero_1_expert", zero(1) + expert},
    {"pipeline", pipeline},
};
INSTANTIATE_TEST_SUITE_P(LowMemory, SameBits, testing::ValuesIn(sharing), name_of_layout);

// --- checkpoints

// Ranks that begin with the checkpoint `from` or at the start, train to step `last`, and save.
fs::path train(const Config& config, const fs::path& from, int first, int last, const fs::path& to) {
  fs::path result;
  std::mutex mutex;
  run_threads(check_layout(config), [&](Communicator& communicator) {
    TestRank rank(config, communicator);
    if (!from.empty()) {
      load_checkpoint(CheckpointReader(from), rank.session().plan(), rank.trainer().parameters(), rank.stream());
    }
    for (int step = first; step < last; ++step) {
      rank.trainer().step(step);
    }
    const fs::path folder = save_checkpoint(to, last, rank.session().plan(), rank.trainer().parameters(), {},
                                            {communicator, rank.trainer().world()}, rank.stream());
    const std::lock_guard lock(mutex);
    if (communicator.rank() == 0) {
      result = folder;
    }
  });
  return result;
}

std::string offload(const char* place) {
  return fmt::format("[plugins.offload]\ndirectory = \"{}\"\nstates = \"{}\"\n", testing::TempDir(), place);
}

TEST(LowMemoryCheckpoints, GoOnInTheSameLayoutAndInAnyOther) {
  const run_test::ProgramFolder folder;
  const Config all = experiment(both, pipeline + zero(2) + tensor + expert);
  const fs::path half = train(all, {}, 0, 2, folder.path("half"));
  const fs::path end = train(all, {}, 0, 4, folder.path("end"));
  EXPECT_THAT(run_test::differences(end, train(all, half, 2, 4, folder.path("same"))), testing::IsEmpty());
  EXPECT_GT(run_test::differences(half, end).size(), 10u);
  // Loaded by another layout and saved again: the same numbers in every bit.
  int number = 0;
  const std::string others[] = {"", zero(3, 4), offload("host") + zero(1), offload("nvme"),
                                offload("host") + "weights = \"host\"\n" + zero(3)};
  for (const std::string& other : others) {
    const fs::path moved = train(experiment(both, other), half, 2, 2, folder.path(fmt::format("moved{}", ++number)));
    EXPECT_THAT(run_test::differences(half, moved), testing::IsEmpty()) << other;
  }
}

// Tables of more elements than are widened at a time; two ranks that share them out have fewer each.
TEST(LowMemoryCheckpoints, OfLargeTablesGoInParts) {
  const run_test::ProgramFolder folder;
  const Overrides large = joined(both, {"model.vocab_size=20000", "model.layers=1"});
  const Config one = experiment(large, zero(0)), parts = experiment(large, zero(1));
  test::expect_same_bits(take_snapshot(parts, 2), take_snapshot(one, 2), "large", 1e-14);
  const fs::path whole = train(one, {}, 0, 2, folder.path("whole"));
  EXPECT_THAT(run_test::differences(whole, train(parts, {}, 0, 2, folder.path("parts"))), testing::IsEmpty());
  EXPECT_THAT(run_test::differences(whole, train(experiment(large), whole, 2, 2, folder.path("loaded"))),
              testing::IsEmpty());
}

TEST(LowMemoryCheckpoints, LoadWithAnyStorage) {
  const run_test::ProgramFolder folder;
  const Overrides bf16 = joined(wide, {R"(run.dtype="bf16")"});
  const Config low = experiment(both), full = experiment(bf16, zero(1));
  // What is stored in fewer bits is exact in f32, and so comes back.
  const fs::path narrow = train(low, {}, 0, 2, folder.path("narrow"));
  const fs::path widened = train(full, narrow, 2, 2, folder.path("widened"));
  EXPECT_THAT(run_test::differences(narrow, widened), testing::IsEmpty());
  EXPECT_THAT(run_test::differences(narrow, train(low, widened, 2, 2, folder.path("again"))), testing::IsEmpty());
  // The other way it is rounded, alike in each layout.
  const fs::path exact = train(full, {}, 0, 2, folder.path("exact"));
  const fs::path rounded = train(low, exact, 2, 2, folder.path("rounded"));
  EXPECT_GT(run_test::differences(exact, rounded).size(), 10u);
  EXPECT_THAT(run_test::differences(rounded, train(experiment(both, zero(3, 4)), exact, 2, 2, folder.path("zero"))),
              testing::IsEmpty());
}

}  // namespace
}  // namespace orthant::low_memory_layouts_test
