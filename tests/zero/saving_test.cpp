// Checkpoints of sharded state: any stage reads what any other wrote; going on from one changes no bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <mutex>
#include <numeric>

#include "core/run/saving.h"
#include "parallel/local/thread_world.h"
#include "tests/support/program.h"
#include "tests/zero/zero_layouts.h"

namespace orthant::zero_test::saving_test {
namespace {

namespace fs = std::filesystem;
using run_test::differences;
using run_test::ProgramFolder;
using test::experiment;
using test::Overrides;
using test::TestRank;
using testing::IsEmpty;
using testing::Not;

// Loads `from` (nothing: the initial weights), trains steps [begin, end), saves under `root`.
fs::path pass_through(const Config& config, const fs::path& from, int begin, int end, const fs::path& root) {
  fs::path saved;
  std::mutex mutex;
  run_threads(check_layout(config), [&](Communicator& communicator) {
    TestRank rank(config, communicator);
    if (!from.empty()) {
      load_checkpoint(CheckpointReader(from), rank.session().plan(), rank.trainer().parameters(), rank.stream());
    }
    for (int step = begin; step < end; ++step) {
      rank.trainer().step(step);
    }
    const fs::path folder = save_checkpoint(root, end, rank.session().plan(), rank.trainer().parameters(), {},
                                            {communicator, rank.trainer().world()}, rank.stream());
    if (communicator.rank() == 0) {
      const std::lock_guard lock(mutex);
      saved = folder;
    }
  });
  return saved;
}

struct Layout {
  const char* name;
  std::string plugins;
};

const Layout layouts[] = {
    {"one_rank", ""},
    {"stage0", zero(0, 2) + with_expert(2)},
    {"stage1", zero(1, 4)},
    {"stage2", zero(2, 2)},
    {"stage3", zero(3, 4) + with_expert(2)},
    {"hybrid", zero(3, 4, "shard_ranks = 2\nwhole_below = 1200\n")},
};

// Parameters of odd sizes, so that shards begin and end within rows.
const Overrides odd = {"model.d_model=15", "model.heads=3", "model.d_ff=7", "model.vocab_size=23",
                       R"(model.positions="learned")"};

TEST(Saving, EveryStageReadsEveryStage) {
  const ProgramFolder folder;
  for (const Layout& writer : layouts) {
    const fs::path written = pass_through(experiment(odd, writer.plugins), {}, 0, 2, folder.path(writer.name));
    CheckpointReader(written).verify();
    for (const Layout& reader : layouts) {
      const std::string pair = fmt::format("{}_to_{}", writer.name, reader.name);
      const fs::path again = pass_through(experiment(odd, reader.plugins), written, 2, 2, folder.path(pair));
      EXPECT_THAT(differences(written, again), IsEmpty()) << pair;
    }
  }
}

// Bytes of tensors in each rank's file, those whose names begin with `prefix`.
std::vector<std::int64_t> bytes_by_rank(const fs::path& checkpoint, const std::string& prefix) {
  std::vector<std::int64_t> bytes;
  for (std::int64_t rank = 0; rank < CheckpointReader(checkpoint).world(); ++rank) {
    const SafetensorsReader file(checkpoint / fmt::format("rank_{:05}.safetensors", rank));
    std::int64_t& sum = bytes.emplace_back(0);
    for (const FileTensor& tensor : file.tensors()) {
      sum += tensor.name.starts_with(prefix) ? static_cast<std::int64_t>(tensor.end - tensor.begin) : 0;
    }
  }
  return bytes;
}

// Who holds the same as others writes a share of it: of weights and of both moments. A rank may have an element more
// than another of each set of ranks that hold the same.
TEST(Saving, RanksThatHoldTheSameShareTheWriting) {
  const Overrides learned = {R"(model.positions="learned")"};
  const std::string tensor = "[plugins.tensor]\nsize = 2\n";
  const std::vector<std::pair<Overrides, std::string>> balanced = {
      {odd, zero(0, 4)},
      {odd, zero(0, 4) + with_expert(2)},
      {odd, zero(1, 4)},
      {odd, zero(3, 4, "shard_ranks = 2\n")},
      {learned, tensor},
      {learned, tensor + zero(0, 2)},
      {learned, tensor + zero(1, 2)},
  };
  for (const auto& [overrides, plugins] : balanced) {
    const ProgramFolder folder;
    const Config config = experiment(overrides, plugins);
    const fs::path saved = pass_through(config, {}, 0, 1, folder.path("saved"));
    const fs::path alone = pass_through(experiment(overrides), {}, 0, 0, folder.path("alone"));
    for (const char* part : {"model.", "lm_head", "optimizer/moment1/", "optimizer/moment2/"}) {
      const std::vector<std::int64_t> bytes = bytes_by_rank(saved, part);
      const std::int64_t sum = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
      EXPECT_EQ(sum, bytes_by_rank(alone, part)[0]) << part;
    }
    const std::vector<std::int64_t> bytes = bytes_by_rank(saved, "");
    const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
    // Shards of a weight that other sums hold too are cut without regard to where shards begin.
    const std::int64_t unequal = plugins == tensor + zero(1, 2) ? *most / 10 : 200;
    EXPECT_LE(*most - *least, unequal) << plugins << testing::PrintToString(bytes);
    EXPECT_GT(*least, 15000) << plugins;
  }
}

TEST(Saving, GoingOnChangesNoBit) {
  for (const char* dtype : {R"(run.dtype="fp32")", R"(run.dtype="bf16")"}) {
    Overrides overrides = odd;
    overrides.insert(overrides.end(), {dtype, "model.dropout=0.1", "batch.micro_batch=1"});
    for (const Layout& layout : layouts) {
      const ProgramFolder folder;
      const Config config = experiment(overrides, layout.plugins);
      const fs::path whole = pass_through(config, {}, 0, 4, folder.path("whole"));
      const fs::path half = pass_through(config, {}, 0, 2, folder.path("half"));
      const fs::path rest = pass_through(config, half, 2, 4, folder.path("rest"));
      EXPECT_THAT(differences(whole, rest), IsEmpty()) << layout.name << " " << dtype;
      EXPECT_THAT(differences(whole, half), Not(IsEmpty())) << "and training does change weights";
    }
  }
}

// Weights that were gathered ahead (a validation ends as if a backward pass followed) are not used after others were
// loaded.
TEST(Saving, LoadedWeightsReplaceThoseGatheredAhead) {
  const ProgramFolder folder;
  const Config config = experiment({}, zero(3, 2));
  const fs::path initial = pass_through(config, {}, 0, 0, folder.path("initial"));
  run_threads(2, [&](Communicator& communicator) {
    TestRank rank(config, communicator);
    const double before = rank.trainer().validate();
    rank.trainer().step(0);
    rank.trainer().step(1);
    EXPECT_NE(rank.trainer().validate(), before);
    load_checkpoint(CheckpointReader(initial), rank.session().plan(), rank.trainer().parameters(), rank.stream());
    EXPECT_EQ(rank.trainer().validate(), before);
  });
}

// As a user meets it: processes, `orthant train`, and `orthant export` of what they left.
TEST(Saving, ARunIsExported) {
  ProgramFolder folder;
  folder.write("c.toml", run_test::tiny_config({4, 2}));
  std::string first;
  for (const char* stage : {"0", "3"}) {
    const std::string name = std::string("stage") + stage;
    const run_test::Result trained = folder.orthant(
        run_test::with_set({"train", "c.toml"}, {"run.name=\"" + name + "\"", std::string("plugins.data.zero=") + stage,
                                                 "plugins.data.whole_below=0", "run.steps=4"}));
    ASSERT_EQ(trained.code, 0) << trained.error;
    const run_test::Result exported = folder.orthant({"export", "runs/" + name, "-o", name});
    ASSERT_EQ(exported.code, 0) << exported.error;
    std::ifstream file(folder.path(name) / "model.safetensors", std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    ASSERT_GT(bytes.size(), 1000u);
    first = first.empty() ? bytes : first;
    EXPECT_TRUE(bytes == first) << "one micro-batch: the same bits";
  }
}

}  // namespace
}  // namespace orthant::zero_test::saving_test
