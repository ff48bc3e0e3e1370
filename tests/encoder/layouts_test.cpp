// Encoders in layouts against one rank, and what they cannot do, refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/verify/verify.h"
#include "core/arch/links.h"
#include "tests/encoder/texts.h"
#include "tests/support/parity.h"

namespace orthant::test::encoder_layouts_test {
namespace {

using testing::HasSubstr;

struct Cell {
  const char* name;
  std::string plugins;
  Overrides overrides = {};
  bool first = false;  // the first encoder, else the modern one
};
void PrintTo(const Cell& cell, std::ostream* out) {
  *out << cell.name;
}

const std::string zero3 = "zero = 3\nwhole_below = 0\n";
const Overrides dense = {"moe.experts=0"};
const Overrides windows = {"model.sliding_window=3", "model.full_attention_every=2", "model.layers=3"};

const Cell cells[] = {
    {"data", axis_table("data", 2)},
    {"data_first", axis_table("data", 4), {}, true},
    {"zero_1", axis_table("data", 2, "zero = 1\n")},
    {"zero_2", axis_table("data", 4, "zero = 2\n"), {}, true},
    {"zero_3", axis_table("data", 2, zero3)},
    {"zero_3_first", axis_table("data", 4, zero3), {}, true},
    {"tensor", axis_table("tensor", 2)},
    {"tensor_first", axis_table("tensor", 4), {}, true},
    {"tensor_sequence_parallel", axis_table("tensor", 2, "sequence_parallel = true\n")},
    {"tensor_sequence_parallel_first", axis_table("tensor", 2, "sequence_parallel = true\n"), {}, true},
    {"expert", axis_table("data", 4) + axis_table("expert", 4)},
    {"expert_folded",
     axis_table("tensor", 2, "experts = \"fold\"\n") + axis_table("data", 2) + axis_table("expert", 4)},
    {"pipeline_2", axis_table("pipeline", 2)},
    {"pipeline_4_first", axis_table("pipeline", 4), {"batch.micro_batch=2"}, true},
    {"pipeline_3_gpipe", axis_table("pipeline", 3, "schedule = \"gpipe\"\n"), {"batch.micro_batch=4"}},
    {"pipeline_interleaved",
     axis_table("pipeline", 2, "schedule = \"interleaved\"\nchunks = 2\n"),
     {"batch.micro_batch=4"}},
    {"ulysses", axis_table("sequence", 2)},
    {"ulysses_first", axis_table("sequence", 4), {}, true},
    {"ring", axis_table("sequence", 2, "method = \"ring\"\n")},
    {"ring_windows", axis_table("sequence", 3, "method = \"ring\"\n"), joined(dense, windows)},
    {"tensor_pipeline", axis_table("tensor", 2) + axis_table("pipeline", 2)},
    {"tensor_ulysses_first", axis_table("tensor", 2) + axis_table("sequence", 2), {}, true},
    {"pipeline_zero2_expert",
     axis_table("pipeline", 2) + axis_table("data", 2, "zero = 2\n") + axis_table("expert", 2)},
    {"tensor_pipeline_zero2_expert", axis_table("tensor", 2) + axis_table("pipeline", 2) +
                                         axis_table("data", 2, "zero = 2\n") + axis_table("expert", 2)},
    {"sequence_zero3_expert", axis_table("sequence", 2) + axis_table("data", 2, zero3) + axis_table("expert", 4)},
    {"switch",
     axis_table("data", 2) + axis_table("expert", 2),
     {R"(moe.router="switch")", "moe.top_k=1", "moe.capacity_factor=1.25", "moe.every=2"}},
    {"windows", axis_table("data", 2) + axis_table("tensor", 2), joined(windows, {"model.full_attention_first=true"})},
    {"tied_pipeline", axis_table("pipeline", 3), {"model.tie_embeddings=true"}},
    {"dropout", axis_table("data", 2) + axis_table("pipeline", 2), {"model.dropout=0.2"}, true},
    {"embedding_norm", axis_table("tensor", 2), {"model.embedding_norm=true"}},
    {"exact_gelu", axis_table("tensor", 2, "sequence_parallel = true\n"), {R"(model.gelu="exact")"}, true},
    {"exact_geglu", axis_table("tensor", 2) + axis_table("pipeline", 2),
     joined(dense, {R"(model.gelu="exact")", R"(model.activation="geglu")"})},
    {"recompute_full", axis_table("data", 2), {R"(memory.recompute="full")"}, true},
    {"recompute_full_experts", axis_table("data", 2) + axis_table("expert", 2), {R"(memory.recompute="full")"}},
    {"recompute_selective", axis_table("tensor", 2), {R"(memory.recompute="selective")"}, true},
    {"separate_texts", axis_table("data", 2), {R"(data.documents="separate")", R"(data.separator="\n")"}},
    {"packed_texts",
     axis_table("sequence", 2),
     {R"(data.documents="packed")", R"(data.separator=" ")", "data.frame=false"}},
    {"offloaded", axis_table("data", 2) + "[plugins.offload]\nstates = \"host\"\nweights = \"host\"\n", {}, true},
    {"averages", axis_table("data", 2, "zero = 1\n"), {"optimizer.ema_decay=0.9"}},
    {"adapters", axis_table("tensor", 2), joined(dense, {"lora.rank=2", R"(lora.targets=["*q_proj*", "*dense*"])"})},
};
class Encoder : public testing::TestWithParam<Cell> {};

TEST_P(Encoder, EqualsOneRank) {
  const Overrides model = GetParam().first ? first_encoder() : modern_encoder();
  const VerifyReport report =
      verify(experiment(joined(model, GetParam().overrides), GetParam().plugins + plugin_encoder), 2);
  EXPECT_TRUE(report.ok()) << differences(report);
}
INSTANTIATE_TEST_SUITE_P(Layouts, Encoder, testing::ValuesIn(cells), [](const auto& cell) { return cell.param.name; });

TEST(EncoderChain, EndsWithATransform) {
  const std::vector<Link> first = links_of(experiment(first_encoder(), plugin_encoder).settings);
  const std::vector<Link> modern = links_of(experiment(modern_encoder(), plugin_encoder).settings);
  ASSERT_EQ(first.size(), 5u);
  EXPECT_EQ(first[3].name, "transform");
  ASSERT_EQ(modern.size(), 6u);
  EXPECT_EQ(modern[3].name, "final norm");
  EXPECT_EQ(modern[2].router, "model.layers.1.block_sparse_moe");
  EXPECT_EQ(first[0].parameters[0].params[0].layers, (std::vector<int>{0, 4}));  // the table is the head's matrix too
}

TEST(EncoderChain, RefusesWhatItCannotDo) {
  const auto refused = [](const Overrides& more) { return refusal(joined(modern_encoder(), more), plugin_encoder); };
  EXPECT_THAT(refused({"model.mtp_depth=1"}), HasSubstr("predicts no tokens further ahead"));
  EXPECT_THAT(refused({R"(model.norm_place="after")"}), HasSubstr("says it by post_norm"));
  EXPECT_THAT(refused({"model.dense_biases=true"}), HasSubstr("a gated FFN has none"));
  EXPECT_THAT(refused({R"(model.gelu="exact")"}), HasSubstr("the activation has none"));
  EXPECT_THAT(refused({"model.classes=4", "model.tie_embeddings=true"}), HasSubstr("a matrix of their own"));
  EXPECT_THAT(refused({R"(model.pooling="mean")"}), HasSubstr("write classes"));
  EXPECT_THAT(refused({"model.full_attention_first=true"}), HasSubstr("no block is told to have no window"));
}

TEST(EncoderSources, RefuseWhatTheyCannotGive) {
  const auto refused = [](const Overrides& more) -> std::string {
    try {
      make_batch_source(experiment(joined(modern_encoder(), more), plugin_encoder).settings);
      return "(opened)";
    } catch (const ConfigError& error) {
      return error.what();
    }
  };
  EXPECT_THAT(refused({R"(data.documents="packed")"}), HasSubstr("leave no room for the ids around each"));
  EXPECT_THAT(refused({"data.masked_share=0.95"}), HasSubstr("with masked_share it is more than 1"));
  EXPECT_THAT(refused({"data.sequence_length=3"}), HasSubstr("3 positions leave 1 for a text"));
  EXPECT_THAT(refused({"model.vocab_size=258"}), HasSubstr("write 259 or more"));
  EXPECT_THAT(refused({R"(data.source="labelled")"}), HasSubstr("write how many there are"));
}

}  // namespace
}  // namespace orthant::test::encoder_layouts_test
