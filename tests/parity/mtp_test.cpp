// Multi-token prediction in every layout, against one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <mutex>
#include <optional>

#include "core/run/saving.h"
#include "parallel/local/thread_world.h"
#include "tests/support/parity.h"
#include "tests/support/program.h"

namespace orthant::mtp_test {
namespace {

using test::experiment;
using test::joined;
using test::Model;
using test::Overrides;

struct Layout {
  const char* name;
  std::string plugins;
  Overrides overrides = {};
};
void PrintTo(const Layout& layout, std::ostream* out) {
  *out << layout.name;
}

const std::string zero3 = "[plugins.data]\nsize = 2\nzero = 3\nwhole_below = 0\n";
const std::string folded = "[plugins.tensor]\nsize = 2\nsequence_parallel = true\nexperts = \"fold\"\n";
std::string stages(int size, const std::string& keys = "") {
  return fmt::format("[plugins.pipeline]\nsize = {}\n{}", size, keys);
}

const Layout layouts[] = {
    {"micro_batches", "", {"batch.micro_batch=2"}},
    {"data", "[plugins.data]\nsize = 2\n"},
    {"zero2", "[plugins.data]\nsize = 4\nzero = 2\n", {"batch.micro_batch=1"}},
    {"zero3", zero3, {"batch.micro_batch=2"}},
    {"layered", "[plugins.data]\nsize = 2\nlayered = true\n", {"batch.micro_batch=2"}},
    {"tensor", "[plugins.tensor]\nsize = 2\n"},
    {"tensor_cut_rows", folded},
    {"ulysses", "[plugins.sequence]\nsize = 2\n"},
    {"ring", "[plugins.sequence]\nsize = 2\nmethod = \"ring\"\n"},
    {"expert", "[plugins.data]\nsize = 4\n[plugins.expert]\nsize = 2\n"},
    {"pipeline", stages(2), {"batch.micro_batch=2"}},
    {"pipeline_of_all_layers", stages(5), {"batch.micro_batch=2"}},  // head and depths are on stages of their own
    {"interleaved", stages(2, "schedule = \"interleaved\"\nchunks = 2\n") + zero3, {"batch.micro_batch=2"}},
    {"pipeline_and_tensor", stages(2) + folded, {"batch.micro_batch=2"}},
    {"four_axes",
     stages(2) + zero3 + "[plugins.tensor]\nsize = 2\n[plugins.expert]\nsize = 2\n",
     {"batch.micro_batch=2"}},
    {"sequence_and_expert",
     "[plugins.data]\nsize = 2\n[plugins.sequence]\nsize = 2\nmethod = \"ring\"\n"
     "[plugins.expert]\nsize = 4\n"},
    {"recomputed", zero3, {R"(memory.recompute="full")", "batch.micro_batch=1"}},
    {"updated_in_backward", "[plugins.data]\nsize = 2\n", {"optimizer.in_backward=true", "optimizer.clip_grad_norm=0"}},
    {"offload",
     "[plugins.data]\nsize = 2\nzero = 1\n[plugins.offload]\nweights = \"host\"\ngradients = \"host\"\n"
     "states = \"host\"\nactivations = \"host\"\n",
     {"batch.micro_batch=2"}},
    {"late_sides", zero3, {"run.device=\"late_sides\""}},
    {"guarded", "[plugins.tensor]\nsize = 2\n", {"run.device=\"guarded\""}},
};

const Model models[] = {
    {"one", {"model.mtp_depth=1"}},
    {"two_tied_dropping",
     {"model.mtp_depth=2", "model.tie_embeddings=true", "moe.capacity_factor=1.0", "model.dropout=0.1",
      "moe.aux_loss=1", "moe.z_loss=0.1"}},
    {"dense_last", {"model.mtp_depth=1", "moe.every=3", "model.layers=4"}},
    {"bias_gate", {"model.mtp_depth=1", R"(moe.router="bias")", R"(moe.score="sigmoid")", "moe.shared_experts=1"}},
    {"learned_positions",
     {"model.mtp_depth=1", R"(model.positions="learned")", R"(model.norm="layernorm")", R"(model.activation="gelu")"}},
    {"adapted", {"model.mtp_depth=2", "lora.rank=2", R"(lora.targets=["*"])"}},
    {"adapted_head_trains",
     {"model.mtp_depth=1", "lora.rank=2", R"(lora.targets=["*_proj.weight", "lm_head.weight"])",
      R"(lora.train_also=["*norm.weight", "model.embed_tokens.weight"])"}},
    {"alone", {"model.mtp_depth=1", R"(train.train_only=["mtp.*"])"}},
};

class Mtp : public testing::TestWithParam<std::tuple<Layout, Model>> {};

TEST_P(Mtp, EqualsOneRank) {
  const auto& [layout, model] = GetParam();
  const Config config = experiment(joined(layout.overrides, model.overrides), layout.plugins);
  const VerifyReport report = verify(config, 3);
  EXPECT_TRUE(report.ok()) << test::differences(report);
}

INSTANTIATE_TEST_SUITE_P(Parity, Mtp, testing::Combine(testing::ValuesIn(layouts), testing::ValuesIn(models)),
                         [](const auto& made) {
                           return fmt::format("{}__{}", std::get<1>(made.param).name, std::get<0>(made.param).name);
                         });

TEST(MtpLosses, InBf16) {
  test::expect_parity({"model.mtp_depth=1", "moe.experts=0", R"(run.dtype="bf16")", R"(optimizer.name="sgd")"},
                      stages(2) + "[plugins.tensor]\nsize = 2\n", {.only_here = {"batch.micro_batch=2"}});
}

// Five held-out sequences, so that the last passes are filled up.
TEST(MtpLosses, OfValidationDoNotDependOnTheLayout) {
  const auto losses = [](const std::string& plugins) {
    const Config config = experiment(
        {"model.mtp_depth=2", "data.validation_sequences=5", "moe.capacity_factor=1.0", "batch.micro_batch=1"},
        plugins);
    std::vector<Validation> found;
    std::mutex mutex;
    run_threads(check_layout(config), [&](Communicator& communicator) {
      test::TestRank rank(config, communicator);
      rank.trainer().step(0);
      const Validation validation = rank.trainer().validate_sets();
      const std::lock_guard lock(mutex);
      found.push_back(validation);
    });
    return found;
  };
  const Validation one = losses("").front();
  EXPECT_NE(one.figures.at("mtp_loss"), one.loss);
  for (const std::string& plugins : {stages(2), stages(3) + zero3, folded + zero3, layouts[8].plugins}) {
    for (const Validation& there : losses(plugins)) {
      EXPECT_NEAR(there.loss, one.loss, 2e-6) << plugins;
      EXPECT_NEAR(there.figures.at("mtp_loss"), one.figures.at("mtp_loss"), 2e-6) << plugins;
    }
  }
}

// With a weight of 0, and routers without losses, the model learns as without.
TEST(MtpLosses, OfNoWeightLeaveTheModelAlone) {
  const Overrides base = {"moe.aux_loss=0", "moe.z_loss=0"};
  const Snapshot without = take_snapshot(experiment(base), 1);
  const Snapshot with = take_snapshot(experiment(joined(base, {"model.mtp_depth=1", "train.mtp_weight=0"})), 1);
  EXPECT_EQ(with.reports[0].loss, without.reports[0].loss);
  EXPECT_FALSE(without.reports[0].figures.contains("mtp_loss"));
  for (const auto& [name, gradient] : without.gradients[0]) {
    EXPECT_LE(test::relative_difference(with.gradients[0].at(name), gradient), 1e-6) << name;
  }
}

// What a layout saves any other loads, in every bit: depths and the tables that they share with embedding and head,
// which lie on several stages in some.
TEST(MtpCheckpoints, OfAnyLayoutLoadIntoAnyOther) {
  const run_test::ProgramFolder folder;
  const Overrides overrides = {"model.mtp_depth=2", "batch.micro_batch=1", R"(moe.router="bias")",
                               R"(moe.score="sigmoid")"};
  const std::string expert = "[plugins.expert]\nsize = 2\n";
  std::filesystem::path last;
  std::optional<double> expected;
  int number = 0;
  for (const std::string& plugins : {stages(3) + zero3, folded + zero3 + expert, std::string(), stages(6)}) {
    const Config config = experiment(overrides, plugins);
    const std::filesystem::path from = last, to = folder.path(std::to_string(number++));
    double loss = 0;
    std::mutex mutex;
    run_threads(check_layout(config), [&](Communicator& communicator) {
      test::TestRank rank(config, communicator);
      if (from.empty()) {
        rank.trainer().step(0);
        rank.trainer().step(1);
      } else {
        load_checkpoint(CheckpointReader(from), rank.session().plan(), rank.trainer().parameters(), rank.stream());
      }
      const std::filesystem::path saved = save_checkpoint(to, 2, rank.session().plan(), rank.trainer().parameters(), {},
                                                          {communicator, rank.trainer().world()}, rank.stream());
      const double next = rank.trainer().gradients(2).figures.at("mtp_loss");
      const std::lock_guard lock(mutex);
      if (communicator.rank() == 0) {
        last = saved;
        loss = next;
      }
    });
    if (expected.has_value()) {
      EXPECT_THAT(run_test::differences(from, last), testing::IsEmpty()) << plugins;
      EXPECT_NEAR(loss, *expected, 1e-6) << plugins;
    }
    expected = loss;
  }
}

TEST(MtpSettings, OutOfRangeAreRefused) {
  EXPECT_THAT(test::refusal({"model.mtp_depth=-1"}, ""), testing::HasSubstr("mtp_depth"));
  EXPECT_THAT(test::refusal({"model.mtp_depth=12"}, ""), testing::HasSubstr("model.mtp_depth"));
  EXPECT_THAT(test::refusal({"model.mtp_depth=1", "train.mtp_weight=-0.1"}, ""), testing::HasSubstr("mtp_weight"));
}

}  // namespace
}  // namespace orthant::mtp_test
