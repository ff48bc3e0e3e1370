// Moving averages of the weights and rates by parameter (optimizer.ema_decay, lr_of, no_decay) in every layout: against
// one rank, against a plain loop in fp64 over what each rank owns, and through checkpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <orthant/weight_average.h>

#include <algorithm>
#include <mutex>

#include "apps/pretrained/run_source.h"
#include "core/layers/parameter_state.h"
#include "core/plan/keeper_chain.h"
#include "core/run/saving.h"
#include "parallel/local/thread_world.h"
#include "tests/support/error_of.h"
#include "tests/support/parity.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::averages_layouts_test {
namespace {

namespace fs = std::filesystem;
using test::experiment;
using test::joined;
using test::Overrides;
using test::TestRank;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Layout {
  const char* name;
  std::string plugins;
  Overrides overrides = {};
  bool one_rank_is_alike = true;  // false: the plugin changes the mathematics
};
void PrintTo(const Layout& layout, std::ostream* out) {
  *out << layout.name;
}

const Overrides averaged = {
    "optimizer.ema_decay=0.2",  // reached in the third step
    R"(optimizer.lr_of=["*.gate.weight", "*.[qk]_proj.weight", "*.experts.[13].w1.*", "*norm.weight"])",
    "optimizer.lr_scales=[0.25, 2, 3.0, 0.5]",
    R"(optimizer.no_decay=["model.embed_tokens.weight", "*.v_proj.weight", "*.experts.2.*"])"};

std::string zero(int stage, int ranks = 2, const std::string& more = "") {
  return fmt::format("[plugins.data]\nsize = {}\nzero = {}\nwhole_below = 0\n{}", ranks, stage, more);
}
std::string offload(const std::string& keys) {
  return fmt::format("[plugins.offload]\ndirectory = \"{}\"\n{}", testing::TempDir(), keys);
}
const std::string pipeline = "[plugins.pipeline]\nsize = 2\n";
const std::string tensor = "[plugins.tensor]\nsize = 2\n";
const std::string expert = "[plugins.expert]\nsize = 2\n";
const std::string all_axes = pipeline + zero(2) + tensor + expert;
const std::string host = "states = \"host\"\n";
const Overrides few_bits = {R"(optimizer.state_dtype="8bit")",
                            R"(run.dtype="bf16")",
                            R"(optimizer.master_weights="none")",
                            "model.d_model=64",
                            "model.d_ff=64",
                            "moe.top_k=4"};
const Overrides unclipped = {"optimizer.in_backward=true", "optimizer.clip_grad_norm=0"};

const Layout layouts[] = {
    {"data", zero(0)},
    {"zero_1", zero(1), {"batch.micro_batch=2"}},
    {"zero_2_odd", zero(2, 4), {"model.d_ff=12"}},
    {"zero_3", zero(3, 4)},
    {"zero_3_hybrid", zero(3, 4, "shard_ranks = 2\n")},
    {"tensor_cut_rows", "[plugins.tensor]\nsize = 2\nsequence_parallel = true\nexperts = \"fold\"\n"},
    {"expert", zero(2, 4) + expert},
    {"pipeline_tied", pipeline + zero(1), {"model.tie_embeddings=true", "batch.micro_batch=2"}},
    {"all_axes", all_axes, {"batch.micro_batch=2"}},
    {"in_backward", zero(1), unclipped},
    {"muon", zero(2) + tensor, {"optimizer.name=\"muon\""}},
    {"few_bits", zero(2), few_bits},
    {"offload", zero(1) + offload(host + "weights = \"host\"\ngradients = \"host\"\n")},
    {"offload_to_disk", offload("states = \"nvme\"\nweights = \"nvme\"\ngradients = \"nvme\"\n")},
    {"offload_in_backward", zero(1) + offload(host), unclipped},
    {"offload_bf16", zero(3) + offload(host), {"run.dtype=\"bf16\"", "moe.top_k=4"}},
    {"lazy", offload(host + "expert_states = \"lazy\"\n"), {"moe.top_k=1", "batch.sequences=1"}},
    {"tried", zero(1) + offload(host + "clip = \"speculative\"\n"), {"optimizer.clip_grad_norm=100"}},
    {"tried_in_vain", zero(1) + offload(host + "clip = \"speculative\"\n"), {"optimizer.clip_grad_norm=0.01"}},
    {"adapters", zero(2), {"lora.rank=2", R"(lora.targets=["*"])", R"(optimizer.no_decay=["*.lora_B.*"])"}},
    {"workers",
     fmt::format("[plugins.local_sgd]\npath = \"{}\"\nsize = 2\nevery = 2\n", paths::out_of_tree("local_sgd")) +
         zero(1),
     {},
     false},
};

// Of all that the rank owns, by parameter; "": the weights.
using Values = std::map<std::string, std::vector<float>>;
Values values_of(TestRank& rank, const std::string& state) {
  Values all;
  for (const auto& group : rank.trainer().parameters().groups()) {
    for (const Param& p : group->params) {
      with_held(rank.session().plan().keepers(), *group, Held::saved, {.stream = rank.stream()}, [&](Stream& home) {
        for (const StatePiece& part : state_pieces(*group, p)) {
          if (part.state == state && !p.spec.frozen) {
            std::vector<float> piece(static_cast<std::size_t>(part.piece.elements()));
            part.download(piece.data(), part.stream(rank.stream(), home));
            std::vector<float>& values = all[p.spec.name];
            values.insert(values.end(), piece.begin(), piece.end());
          }
        }
      });
    }
  }
  return all;
}

class AveragesIn : public testing::TestWithParam<Layout> {
 protected:
  Config config() const { return experiment(joined(averaged, GetParam().overrides), GetParam().plugins); }
};

TEST_P(AveragesIn, EqualThoseOfOneRank) {
  if (!GetParam().one_rank_is_alike) {
    GTEST_SKIP() << "workers are runs of their own";
  }
  const VerifyReport report = verify(config(), 3);
  EXPECT_TRUE(report.ok()) << test::differences(report);
  EXPECT_TRUE(std::any_of(report.rows.begin(), report.rows.end(),
                          [](const Comparison& row) { return row.quantity == "ema" && row.compared > 0; }));
}

TEST_P(AveragesIn, AreThoseOfTheWeightsThatEachRankOwns) {
  const Config all = config();
  run_threads(check_layout(all), [&](Communicator& communicator) {
    TestRank rank(all, communicator);
    std::map<std::string, std::vector<double>> expected;
    for (const auto& [name, x] : values_of(rank, "")) {
      expected[name] = {x.begin(), x.end()};
    }
    EXPECT_EQ(values_of(rank, average_state), values_of(rank, "")) << "they begin as the weights";
    for (int step = 0; step < 4; ++step) {
      rank.trainer().step(step);
      const double d = std::min(0.2, (1.0 + step) / (10.0 + step));
      for (const auto& [name, x] : values_of(rank, "")) {
        for (std::size_t i = 0; i < x.size(); ++i) {
          double& e = expected.at(name).at(i);
          e = d * e + (1 - d) * static_cast<double>(x[i]);
        }
      }
    }
    const Values got = values_of(rank, average_state);
    ASSERT_EQ(got.size(), expected.size());
    for (const auto& [name, values] : got) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double e = expected.at(name).at(i);
        ASSERT_NEAR(static_cast<double>(values[i]), e, 1e-6 * (std::abs(e) + 0.01)) << name << " at " << i;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Parity, AveragesIn, testing::ValuesIn(layouts),
                         [](const auto& made) { return made.param.name; });

// --- checkpoints

struct Passed {
  fs::path folder;
  std::vector<std::string> notes;
  bool began_as_weights = false;  // on rank 0, right after loading
};
Passed pass_through(const Config& config, const fs::path& from, int first, int last, const fs::path& to) {
  Passed passed;
  std::mutex mutex;
  run_threads(check_layout(config), [&](Communicator& communicator) {
    TestRank rank(config, communicator);
    std::vector<std::string> notes;
    if (!from.empty()) {
      const CheckpointReader reader(from);
      require_same_parameters(reader, config.settings);
      notes = load_checkpoint(reader, rank.session().plan(), rank.trainer().parameters(), rank.stream());
    }
    const bool alike = config.settings.optimizer.ema_decay > 0 && values_of(rank, average_state) == values_of(rank, "");
    for (int step = first; step < last; ++step) {
      rank.trainer().step(step);
    }
    const fs::path folder = save_checkpoint(to, last, rank.session().plan(), rank.trainer().parameters(), {},
                                            {communicator, rank.trainer().world()}, rank.stream());
    const std::lock_guard lock(mutex);
    if (communicator.rank() == 0) {
      passed = {folder, notes, alike};
    }
  });
  return passed;
}

TEST(AverageCheckpoints, LoadIntoAnyLayout) {
  const run_test::ProgramFolder folder;
  const Overrides overrides = joined(averaged, {"batch.micro_batch=2"});
  const Config all = experiment(overrides, all_axes);
  const Passed half = pass_through(all, {}, 0, 2, folder.path("half"));
  EXPECT_FALSE(half.folder.empty());
  const Passed whole = pass_through(all, {}, 0, 4, folder.path("whole"));
  const Passed same = pass_through(all, half.folder, 2, 4, folder.path("same"));
  EXPECT_FALSE(same.began_as_weights);
  EXPECT_THAT(run_test::differences(whole.folder, same.folder), IsEmpty());
  int number = 0;
  for (const std::string& plugins : {std::string(), zero(1), zero(2, 4), zero(3), tensor, offload(host)}) {
    const Passed moved =
        pass_through(experiment(overrides, plugins), half.folder, 2, 2, folder.path(fmt::format("moved{}", number++)));
    EXPECT_THAT(run_test::differences(half.folder, moved.folder), IsEmpty()) << plugins;
    EXPECT_THAT(moved.notes, IsEmpty());
  }
}

TEST(AverageCheckpoints, WithoutAveragesLetThemBeginAsTheWeights) {
  const run_test::ProgramFolder folder;
  for (const Overrides& storage : {Overrides{}, few_bits}) {
    SCOPED_TRACE(storage.size());
    const std::string name = storage.empty() ? "fp32" : "few_bits";
    const Passed without = pass_through(experiment(storage, zero(1)), {}, 0, 2, folder.path("without" + name));
    EXPECT_FALSE(has_averages(CheckpointReader(without.folder)));
    const Passed with = pass_through(experiment(joined(storage, {"optimizer.ema_decay=0.9"}), zero(1)), without.folder,
                                     2, 3, folder.path("with" + name));
    EXPECT_TRUE(with.began_as_weights);
    EXPECT_THAT(with.notes, ElementsAre(HasSubstr("has no averages of the weights: they begin as its weights")));
    EXPECT_TRUE(has_averages(CheckpointReader(with.folder)));
    const Passed again = pass_through(experiment(storage), with.folder, 3, 3, folder.path("again" + name));
    EXPECT_THAT(again.notes, ElementsAre(HasSubstr("are left out: optimizer.ema_decay is 0 here")));
    EXPECT_FALSE(has_averages(CheckpointReader(again.folder)));
  }
}

// What a run begins with is not what another one has averaged.
TEST(AverageCheckpoints, ANewRunBeginsItsOwn) {
  const run_test::ProgramFolder folder;
  const Config config = experiment(averaged, zero(1));
  const Passed trained = pass_through(config, {}, 0, 3, folder.path("trained"));
  run_threads(2, [&](Communicator& communicator) {
    TestRank rank(config, communicator);
    const CheckpointReader reader(trained.folder);
    load_checkpoint(reader, rank.session().plan(), rank.trainer().parameters(), rank.stream());
    EXPECT_NE(values_of(rank, average_state), values_of(rank, ""));
    load_weights(reader, rank.session().plan(), rank.trainer().parameters(), rank.stream());
    EXPECT_EQ(values_of(rank, average_state), values_of(rank, ""));
  });
}

TEST(AverageCheckpoints, AreReadInThePlaceOfTheWeights) {
  const run_test::ProgramFolder folder;
  const Overrides frozen = {R"(train.freeze=["lm_head.weight"])"};
  const Passed trained = pass_through(experiment(joined(averaged, frozen)), {}, 0, 2, folder.path("trained"));
  const CheckpointReader plain(trained.folder), instead = weights_reader(trained.folder, true);
  const auto read = [](const CheckpointReader& reader, const std::string& name) {
    const Shape shape = reader.info(name).shape;
    std::vector<float> values(static_cast<std::size_t>(shape.elements()));
    reader.read(name, {0, 0}, {shape[0], shape[1]}, values.data());
    return values;
  };
  const std::string q = "model.layers.0.self_attn.q_proj.weight";
  EXPECT_EQ(read(instead, q), read(plain, "optimizer/ema/" + q));
  EXPECT_NE(read(instead, q), read(plain, q));
  EXPECT_EQ(read(instead, "lm_head.weight"), read(plain, "lm_head.weight")) << "frozen";
  const Passed without = pass_through(experiment(), {}, 0, 1, folder.path("without"));
  EXPECT_THAT(test::error_of([&] { weights_reader(without.folder, true); }),
              AllOf(HasSubstr("has no averages of the weights"), HasSubstr("optimizer.ema_decay=0.999")));
}

}  // namespace
}  // namespace orthant::averages_layouts_test
