// An encoder-decoder in layouts against one rank, and what it cannot do, refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/verify/verify.h"
#include "core/arch/links.h"
#include "tests/support/parity.h"

namespace orthant::test::encoder_decoder_test {
namespace {

using testing::HasSubstr;

const Overrides base = {R"(model.kind="t5")",         R"(data.source="rewriting")", "data.sequence_length=8",
                        "model.source_length=12",     "model.encoder_layers=3",     "model.vocab_size=128",
                        R"(model.activation="relu")", "model.relative_buckets=8",   "model.relative_distance=16"};
const std::string plugin = "[plugins.encoder_decoder]\n";

std::string table(const char* name, int size, const std::string& more = "") {
  return fmt::format("[plugins.{}]\nsize = {}\n{}", name, size, more);
}

struct Cell {
  const char* name;
  std::string plugins;
  Overrides overrides = {};
};
void PrintTo(const Cell& cell, std::ostream* out) {
  *out << cell.name;
}

const Overrides dense = {"moe.experts=0"};
const std::string zero3 = "zero = 3\nwhole_below = 0\n";

const Cell cells[] = {
    {"data", table("data", 2)},
    {"data_dense", table("data", 4), dense},
    {"zero_1", table("data", 2, "zero = 1\n")},
    {"zero_2", table("data", 4, "zero = 2\n")},
    {"zero_3", table("data", 2, zero3)},
    {"tensor", table("tensor", 2)},
    {"tensor_dense", table("tensor", 4), dense},
    {"tensor_sequence_parallel", table("tensor", 2, "sequence_parallel = true\n")},
    {"expert", table("data", 4) + table("expert", 4)},
    {"expert_folded", table("tensor", 2, "experts = \"fold\"\n") + table("data", 2) + table("expert", 4)},
    {"pipeline_2", table("pipeline", 2)},
    {"pipeline_4", table("pipeline", 4), {"batch.micro_batch=2"}},
    {"pipeline_3_gpipe", table("pipeline", 3, "schedule = \"gpipe\"\n"), {"batch.micro_batch=4"}},
    {"pipeline_interleaved", table("pipeline", 2, "schedule = \"interleaved\"\nchunks = 2\n"), {"batch.micro_batch=4"}},
    {"ulysses", table("sequence", 2)},
    {"ulysses_dense", table("sequence", 4), dense},
    {"tensor_pipeline", table("tensor", 2) + table("pipeline", 2)},
    {"pipeline_zero2_expert", table("pipeline", 2) + table("data", 2, "zero = 2\n") + table("expert", 2)},
    {"tensor_pipeline_zero2_expert",
     table("tensor", 2) + table("pipeline", 2) + table("data", 2, "zero = 2\n") + table("expert", 2)},
    {"sequence_zero3_expert", table("sequence", 2) + table("data", 2, zero3) + table("expert", 4)},
    {"capacity", table("data", 2) + table("expert", 2), {"moe.capacity_factor=1.0"}},
    {"switch",
     table("data", 2) + table("expert", 2),
     {R"(moe.router="switch")", "moe.top_k=1", "moe.capacity_factor=1.25", "moe.every=2"}},
    {"gshard_and_layer_norm",
     table("data", 2) + table("expert", 2) + table("pipeline", 2),
     {R"(moe.router="gshard")", "moe.capacity_factor=2.0", R"(model.norm="layernorm")", "batch.micro_batch=2"}},
    {"heads_of_an_odd_size", table("tensor", 2), {"model.head_dim=5", "model.start_token=3", "model.end_token=46"}},
    {"tied_pipeline", table("pipeline", 3), {"model.tie_embeddings=true"}},
    {"dropout", table("data", 2) + table("pipeline", 2), {"model.dropout=0.2"}},
    {"recompute_full",
     table("pipeline", 2) + table("data", 2) + table("expert", 2),
     {R"(memory.recompute="full")", "model.dropout=0.2", "moe.jitter=0.2", "moe.capacity_factor=1.0"}},
    {"recompute_full_dense", table("data", 2, zero3), joined(dense, {R"(memory.recompute="full")"})},
    {"heads_of_another_size", table("tensor", 2), {"model.head_dim=6", "model.attention_scale=1.0"}},
};
class EncoderDecoder : public testing::TestWithParam<Cell> {};

TEST_P(EncoderDecoder, EqualsOneRank) {
  const VerifyReport report = verify(experiment(joined(base, GetParam().overrides), GetParam().plugins + plugin), 2);
  EXPECT_TRUE(report.ok()) << differences(report);
}
INSTANTIATE_TEST_SUITE_P(Layouts, EncoderDecoder, testing::ValuesIn(cells),
                         [](const auto& cell) { return cell.param.name; });

TEST(EncoderDecoderChain, PassesTheEncodersOutputThroughTheDecoder) {
  const Config config = experiment(base, plugin);
  const std::vector<Link> links = links_of(config.settings);
  ASSERT_EQ(links.size(), 8u);
  EXPECT_EQ(links[4].name, "encoder end");
  EXPECT_EQ(links[5].passes.size(), 2u);
  EXPECT_EQ(links[5].passes[0].space, 1);
  EXPECT_EQ(links[6].passes.size(), 1u);
  EXPECT_EQ(links[1].space, 1);
  EXPECT_EQ(links[5].space, 0);
}

TEST(EncoderDecoderChain, RefusesWhatItCannotDo) {
  const auto refused = [](const Overrides& more) { return refusal(joined(base, more), plugin); };
  EXPECT_THAT(refused({R"(data.source="synthetic")"}),
              AllOf(HasSubstr("\"synthetic\" gives tokens, and a model of kind \"t5\" reads target and source"),
                    HasSubstr("write source = \"spans\" or \"prefix\" or \"translation\" or \"rewriting\"")));
  EXPECT_THAT(refused({"model.mtp_depth=1"}), HasSubstr("predicts no tokens further ahead"));
  EXPECT_THAT(refused({R"(model.kind="decoder")"}), HasSubstr("\"rewriting\" gives target and source"));
  EXPECT_THAT(refused({"data.validation_sequences=0", "run.validate_every=1"}), HasSubstr("0 measures nothing"));
  EXPECT_THAT(refused({"model.biases=true"}), HasSubstr("[model] biases: kind \"t5\" does not read it"));
  EXPECT_THAT(refused({"model.relative_buckets=6"}), HasSubstr("write a multiple of 4"));
  EXPECT_THAT(refusal(base, table("sequence", 2, "method = \"ring\"\n") + plugin),
              HasSubstr("needs whole sequences in attention, and axis 'sequence' divides them"));
  EXPECT_THAT(
      refusal(joined(base, {"model.source_length=9"}), table("sequence", 2) + plugin),
      HasSubstr("9 positions of a sequence do not divide into 2 parts for the 2 ranks of axis 'sequence', in the "
                "token space 'source'"));
  EXPECT_THAT(refused({"moe.every=4", "moe.top_k=2"}), HasSubstr("no block of either stack would have experts"));
  EXPECT_THAT(refused({"moe.every=3", "model.head_dim=5"}), HasSubstr("accepted"));  // the encoder's third block
  EXPECT_THAT(refused({"model.end_token=128"}), HasSubstr("[model] end_token: it is no id below vocab_size"));
}

}  // namespace
}  // namespace orthant::test::encoder_decoder_test
