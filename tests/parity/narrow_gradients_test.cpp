// Gradients in bf16 (optimizer.gradient_dtype) in every layout: against one rank, sums over ranks rounded here, and who
// is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

#include "tests/support/parity.h"
#include "tests/support/paths.h"

namespace orthant::narrow_gradients_layouts_test {
namespace {

using test::axes;
using test::experiment;
using test::joined;
using test::Overrides;
using testing::AllOf;
using testing::HasSubstr;

// Every token goes to every expert: none is sent elsewhere by what is rounded.
const Overrides narrow = {R"(optimizer.gradient_dtype="bf16")", "moe.top_k=4"};

std::string zero(int stage, int ranks = 2, const std::string& more = "") {
  return fmt::format("[plugins.data]\nsize = {}\nzero = {}\nwhole_below = 0\n{}", ranks, stage, more);
}
const std::string pipeline = "[plugins.pipeline]\nsize = 2\n";
const std::string tensor = "[plugins.tensor]\nsize = 2\nsequence_parallel = true\n";
const std::string expert = "[plugins.expert]\nsize = 2\n";

struct Layout {
  const char* name;
  std::string plugins;
  Overrides overrides = {};
};
void PrintTo(const Layout& layout, std::ostream* out) {
  *out << layout.name;
}

class Narrow : public testing::TestWithParam<Layout> {};

TEST_P(Narrow, EqualsOneRank) {
  const VerifyReport report = verify(experiment(joined(narrow, GetParam().overrides), GetParam().plugins), 3);
  EXPECT_TRUE(report.ok()) << test::differences(report);
}

const Layout layouts[] = {
    {"data", zero(0)},
    {"zero_1_micro_batches", zero(1), {"batch.micro_batch=1"}},
    {"zero_2_odd_tied", zero(2, 4), {"model.tie_embeddings=true", "model.vocab_size=23", "batch.micro_batch=1"}},
    {"zero_3_hybrid", zero(3, 4, "shard_ranks = 2\n"), {"batch.micro_batch=2"}},
    {"zero_3_layered", zero(3, 2, "layered = true\n"), {"batch.micro_batch=2"}},
    {"expert_bf16", zero(1, 4) + expert, {R"(run.dtype="bf16")"}},
    {"tensor", tensor, {"batch.micro_batch=4"}},
    {"ring_nobody_sums", "[plugins.sequence]\nsize = 2\nmethod = \"ring\"\n", {"moe.experts=0", "moe.top_k=0"}},
    {"pipeline_tied", pipeline + zero(1), {"model.tie_embeddings=true", "batch.micro_batch=2"}},
    {"all_axes_recompute", pipeline + zero(2) + tensor + expert, {R"(memory.recompute="full")", "batch.micro_batch=2"}},
    {"muon", zero(2), {R"(optimizer.name="muon")"}},
    {"in_backward", zero(3), {"optimizer.in_backward=true", "optimizer.clip_grad_norm=0"}},
    {"adapters",
     zero(2),
     {R"(lora.targets=["*q_proj*", "*experts*"])", "lora.rank=2", "batch.micro_batch=2", R"(optimizer.name="sgd")"}},
    {"mtp", pipeline + zero(1), {"model.mtp_depth=1", "batch.micro_batch=2"}},
};
INSTANTIATE_TEST_SUITE_P(Parity, Narrow, testing::ValuesIn(layouts),
                         [](const auto& layout) { return layout.param.name; });

// To eight bits, ties to even, by the bits of the number.
float nearest_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value), odd = bits >> 16 & 1;
  return std::bit_cast<float>((bits + 0x7fff + odd) & 0xffff0000u);
}

// Ranks round their own, and what they add up is rounded once more; the stages share out the same numbers. The scale of
// a step is 1 / tokens: with half of the batch a gradient is exactly twice its part.
TEST(NarrowGradients, AreRoundedBeforeAndBehindTheSumOverRanks) {
  const Overrides two = joined(narrow, {"batch.sequences=2"});
  const Config both = experiment({"moe.top_k=4", "batch.sequences=2"});
  const auto source = make_batch_source(both.settings);
  std::map<std::string, std::vector<float>> own[2];
  for (int row = 0; row < 2; ++row) {
    const HostBatch batch = source->train(0, row, 1);
    const test::FixedSource fixed(batch, source->vocabulary());
    test::OneRank rank(experiment({"moe.top_k=4", "batch.sequences=1"}), &fixed);
    rank->trainer().gradients(0);
    for (const std::string& name : rank->names()) {
      own[row][name] = rank->gradient(name);
    }
  }
  std::map<std::string, std::vector<float>> sums;
  for (const auto& [name, first] : own[0]) {
    for (std::size_t i = 0; i < first.size(); ++i) {
      sums[name].push_back(nearest_bf16(nearest_bf16(first[i] / 2) + nearest_bf16(own[1][name][i] / 2)));
    }
  }
  for (int stage = 0; stage <= 3; ++stage) {
    const Snapshot layout = take_snapshot(experiment(two, zero(stage)), 1);
    test::expect_same_bits(layout.gradients.at(0), sums, fmt::format("stage {}", stage));
  }
}

// A keeper that reads f32 numbers would read pairs of bf16 ones.
TEST(NarrowGradients, AreRefusedWithKeepersThatDoNotTakeThem) {
  const std::string topk = fmt::format("[plugins.topk_sums]\npath = \"{}\"\n", paths::out_of_tree("topk_sums"));
  EXPECT_THAT(test::refusal(narrow, topk + axes(2)),
              AllOf(HasSubstr("[optimizer] gradient_dtype: plugin 'topk_sums' does not say that it takes gradients in "
                              "bf16"),
                    HasSubstr("leave [plugins.topk_sums] out")));
  EXPECT_THAT(test::refusal({}, topk + axes(2)), HasSubstr("accepted"));
}

}  // namespace
}  // namespace orthant::narrow_gradients_layouts_test
