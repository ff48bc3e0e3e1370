// Optimizers in every layout: one that wants whole matrices, and those that plugins out of the tree bring, two of which
// have numbers over rows, columns and whole parameters. Against one rank, and from a checkpoint on, in the same layout
// in every bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "core/run/saving.h"
#include "parallel/local/thread_world.h"
#include "tests/support/parity.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::optimizers_test {
namespace {

namespace fs = std::filesystem;
using test::experiment;
using test::joined;
using test::Overrides;
using test::TestRank;

struct Layout {
  const char* name;
  const char* plugins;
  Overrides overrides = {};
};
void PrintTo(const Layout& layout, std::ostream* out) {
  *out << layout.name;
}

const char* const all_axes =
    "[plugins.pipeline]\nsize = 2\n[plugins.data]\nsize = 2\nzero = 2\n[plugins.tensor]\nsize = 2\n"
    "[plugins.expert]\nsize = 2\n";

const Layout layouts[] = {
    {"data", "[plugins.data]\nsize = 2\n"},
    {"zero1", "[plugins.data]\nsize = 2\nzero = 1\n"},
    {"zero2", "[plugins.data]\nsize = 4\nzero = 2\n", {"model.d_ff=12"}},
    {"zero3", "[plugins.data]\nsize = 4\nzero = 3\nwhole_below = 0\n"},
    {"zero1_in_replicas", "[plugins.data]\nsize = 4\nzero = 1\nshard_ranks = 2\n"},
    {"tensor", "[plugins.tensor]\nsize = 2\n"},
    {"tensor_of_shared_heads", "[plugins.tensor]\nsize = 4\n", {"model.kv_heads=2"}},
    {"shared_heads_inside_zero",
     "[plugins.data]\nsize = 2\nzero = 1\n[plugins.tensor]\nsize = 4\n",
     {"model.kv_heads=2"}},
    {"sequence", "[plugins.sequence]\nsize = 2\n", {"moe.experts=0"}},
    {"adapters",
     "[plugins.data]\nsize = 2\nzero = 2\n[plugins.tensor]\nsize = 2\n",
     {"lora.rank=2", R"(lora.targets=["*"])"}},
    {"tensor_cut_rows", "[plugins.tensor]\nsize = 2\nsequence_parallel = true\nexperts = \"fold\"\n"},
    {"tensor_inside_zero", "[plugins.data]\nsize = 2\nzero = 1\n[plugins.tensor]\nsize = 2\n", {"model.kv_heads=2"}},
    {"tensor_around_zero", "[plugins.tensor]\nsize = 2\n[plugins.data]\nsize = 4\nzero = 3\nwhole_below = 0\n"},
    {"expert", "[plugins.data]\nsize = 4\nzero = 2\n[plugins.expert]\nsize = 2\n"},
    {"pipeline_tied",
     "[plugins.pipeline]\nsize = 2\n[plugins.data]\nsize = 2\nzero = 1\n",
     {"model.tie_embeddings=true", "batch.micro_batch=2"}},
    {"all_axes", all_axes, {"batch.micro_batch=2", "moe.shared_experts=1"}},
};

// The optimizer's table comes last: plugins without an axis stand anywhere.
struct Optimizing {
  const char* name;
  std::string table;
};
std::vector<Optimizing> optimizers() {
  return {{"muon", ""},
          {"lion", fmt::format("[plugins.lion]\npath = \"{}\"\nbeta2 = 0.95\n", paths::out_of_tree("lion"))},
          {"adafactor", fmt::format("[plugins.adafactor]\npath = \"{}\"\n", paths::out_of_tree("adafactor"))},
          {"lamb", fmt::format("[plugins.lamb]\npath = \"{}\"\n", paths::out_of_tree("lamb"))}};
}

class Optimizers : public testing::TestWithParam<std::tuple<Layout, Optimizing>> {
 protected:
  static Config config(const Layout& layout, const Optimizing& optimizer, const Overrides& more = {}) {
    const Overrides name = {fmt::format("optimizer.name=\"{}\"", optimizer.name)};
    return experiment(joined(joined(layout.overrides, name), more), layout.plugins + optimizer.table);
  }
};

TEST_P(Optimizers, EqualOneRank) {
  const auto& [layout, optimizer] = GetParam();
  const VerifyReport report = verify(config(layout, optimizer), 3);
  EXPECT_TRUE(report.ok()) << test::differences(report);
}

INSTANTIATE_TEST_SUITE_P(Parity, Optimizers,
                         testing::Combine(testing::ValuesIn(layouts), testing::ValuesIn(optimizers())),
                         [](const auto& made) {
                           return fmt::format("{}_{}", std::get<1>(made.param).name, std::get<0>(made.param).name);
                         });

// --- checkpoints

// Ranks that begin with the checkpoint `from` or at the start, train to step `last`, and save.
struct Trained {
  fs::path folder;
  double loss = 0;  // of the last step
};
Trained train(const Config& config, const fs::path& from, int first, int last, const fs::path& to) {
  Trained result;
  std::mutex mutex;
  run_threads(check_layout(config), [&](Communicator& communicator) {
    TestRank rank(config, communicator);
    if (!from.empty()) {
      load_checkpoint(CheckpointReader(from), rank.session().plan(), rank.trainer().parameters(), rank.stream());
    }
    double loss = 0;
    for (int step = first; step < last; ++step) {
      loss = rank.trainer().step(step).loss;
    }
    const fs::path folder = save_checkpoint(to, last, rank.session().plan(), rank.trainer().parameters(), {},
                                            {communicator, rank.trainer().world()}, rank.stream());
    const std::lock_guard lock(mutex);
    if (communicator.rank() == 0) {
      result = {folder, loss};
    }
  });
  return result;
}

class OptimizerCheckpoints : public testing::TestWithParam<Optimizing> {};

TEST_P(OptimizerCheckpoints, GoOnInTheSameLayoutAndInAnyOther) {
  const run_test::ProgramFolder folder;
  const Overrides overrides = {fmt::format("optimizer.name=\"{}\"", GetParam().name), "batch.micro_batch=2"};
  const Config all = experiment(overrides, all_axes + GetParam().table);
  const Config other = experiment(overrides, "[plugins.tensor]\nsize = 2\n" + GetParam().table);
  const Trained half = train(all, {}, 0, 2, folder.path("half"));
  const Trained whole = train(all, {}, 0, 4, folder.path("whole"));
  const Trained same = train(all, half.folder, 2, 4, folder.path("same"));
  EXPECT_THAT(run_test::differences(whole.folder, same.folder), testing::IsEmpty());
  EXPECT_GT(run_test::differences(half.folder, whole.folder).size(), 10u);
  // Loaded by another layout and saved again: the same state in every bit; and it goes on alike.
  EXPECT_THAT(run_test::differences(half.folder, train(other, half.folder, 2, 2, folder.path("moved")).folder),
              testing::IsEmpty());
  const Trained elsewhere = train(other, half.folder, 2, 4, folder.path("elsewhere"));
  EXPECT_NEAR(elsewhere.loss, whole.loss, 1e-5 * whole.loss);
}

TEST_P(OptimizerCheckpoints, OfAnotherOptimizerAreRefusedByName) {
  const run_test::ProgramFolder folder;
  const Trained adamw = train(experiment(), {}, 0, 1, folder.path("adamw"));
  const Config config = experiment({fmt::format("optimizer.name=\"{}\"", GetParam().name)}, GetParam().table);
  if (std::string_view(GetParam().name) == "lamb") {  // its states are AdamW's, in name and meaning
    EXPECT_GT(train(config, adamw.folder, 1, 2, folder.path("other")).loss, 0);
    return;
  }
  try {
    train(config, adamw.folder, 1, 1, folder.path("other"));
    FAIL() << "it was loaded";
  } catch (const Error& refused) {
    EXPECT_THAT(refused.what(), testing::HasSubstr("has no 'optimizer/"));
  }
}

INSTANTIATE_TEST_SUITE_P(Parity, OptimizerCheckpoints, testing::ValuesIn(optimizers()),
                         [](const auto& made) { return made.param.name; });

// --- checkpoints written before optimizers named their state

class OldCheckpoints : public testing::TestWithParam<const char*> {};

// Two ranks wrote them (ZeRO 1) at commit f002ac2, and went on with these losses.
TEST_P(OldCheckpoints, LoadAndGoOn) {
  const std::string optimizer = GetParam();
  const fs::path old = paths::source("tests/parity/fixtures/before_named_state/" + optimizer + "/step_000003");
  const Overrides overrides = {fmt::format("optimizer.name=\"{}\"", optimizer),
                               "model.layers=1",
                               "model.d_model=8",
                               "model.heads=2",
                               "model.d_ff=8",
                               "model.vocab_size=16",
                               "moe.experts=2",
                               "moe.aux_loss=0.01",
                               "moe.z_loss=0"};
  const run_test::ProgramFolder folder;
  for (const char* plugins : {"", "[plugins.data]\nsize = 2\nzero = 1\n", "[plugins.tensor]\nsize = 2\n"}) {
    const std::string name = plugins[0] == '\0' ? "one" : std::string(plugins).substr(9, 4);
    const Config config = experiment(overrides, plugins);
    EXPECT_THAT(run_test::differences(old, train(config, old, 3, 3, folder.path("again" + name)).folder),
                testing::IsEmpty());
    EXPECT_NEAR(train(config, old, 3, 6, folder.path("on" + name)).loss,
                optimizer == "adamw" ? 2.478679901609818 : 2.777212838331858, 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Parity, OldCheckpoints, testing::Values("adamw", "sgd"),
                         [](const auto& made) { return std::string(made.param); });

}  // namespace
}  // namespace orthant::optimizers_test
