// Models of images in layouts against one rank; what they cannot do, refused by name; and mistakes that are seen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/verify/verify.h"
#include "core/arch/links.h"
#include "tests/images/experiments.h"
#include "tests/support/parity.h"

namespace orthant::test::images_layouts_test {
namespace {

using namespace images_test;
using testing::HasSubstr;

std::string table(const char* name, int size, const std::string& more = "") {
  return fmt::format("[plugins.{}]\nsize = {}\n{}", name, size, more);
}

struct Cell {
  const char* name;
  Overrides model;
  std::string plugins;
  Overrides overrides = {};
};
void PrintTo(const Cell& cell, std::ostream* out) {
  *out << cell.name;
}

const std::string zero3 = "zero = 3\nwhole_below = 0\n";
const std::string cut_rows = "sequence_parallel = true\n";
const std::string interleaved = "schedule = \"interleaved\"\nchunks = 2\n";

const Cell cells[] = {
    {"data", dense, table("data", 4)},
    {"zero_1", dense, table("data", 2, "zero = 1\n")},
    {"zero_2", dense, table("data", 4, "zero = 2\n")},
    {"zero_3", dense, table("data", 2, zero3)},
    {"tensor", dense, table("tensor", 2)},
    {"tensor_4", dense, table("tensor", 4)},
    {"sequence_parallel", dense, table("tensor", 2, cut_rows)},
    {"pipeline", dense, table("pipeline", 2), {"batch.micro_batch=2"}},
    {"pipeline_4", dense, table("pipeline", 4), {"batch.micro_batch=2"}},
    {"gpipe", dense, table("pipeline", 3, "schedule = \"gpipe\"\n"), {"batch.micro_batch=4"}},
    {"interleaved", dense, table("pipeline", 2, interleaved), {"batch.micro_batch=4", "model.layers=3"}},
    {"ulysses", dense, table("sequence", 2)},
    {"all_axes", dense, table("pipeline", 2) + table("data", 2, "zero = 2\n") + table("tensor", 2, cut_rows)},
    {"tensor_sequence", dense, table("tensor", 2) + table("sequence", 2)},
    {"recompute", dense, table("pipeline", 2), {R"(memory.recompute="full")", "batch.micro_batch=2"}},
    {"selective", dense, table("tensor", 2), {R"(memory.recompute="selective")"}},
    {"dropout", dense, table("data", 2) + table("tensor", 2, cut_rows), {"model.dropout=0.2"}},
    {"adapters",
     dense,
     table("data", 2, zero3) + table("tensor", 2),
     {"lora.rank=2", R"(lora.targets="*proj.weight")"}},
    {"averages", dense, table("data", 2, "zero = 2\n"), {"optimizer.ema_decay=0.9"}},
    {"mean", of_mean, table("data", 2) + table("sequence", 2), {"moe.experts=0"}},
    {"mean_ulysses_4", of_mean, table("sequence", 4), {"moe.experts=0"}},
    {"mean_rows", of_mean, table("tensor", 2, cut_rows) + table("sequence", 2), {"moe.experts=0"}},
    {"mean_ring", of_mean, table("sequence", 2, "method = \"ring\"\n"), {"moe.experts=0"}},
    {"priority_data", priority, table("data", 4)},
    {"priority_expert", priority, table("data", 4) + table("expert", 4)},
    {"priority_tensor", priority, table("tensor", 2) + table("data", 2, "zero = 2\n") + table("expert", 2)},
    {"priority_folded", priority, table("tensor", 2, "experts = \"fold\"\n") + table("data", 2) + table("expert", 4)},
    {"priority_rows", priority, table("tensor", 2, cut_rows) + table("data", 2)},
    {"priority_ulysses", priority, table("sequence", 2) + table("data", 2) + table("expert", 4)},
    {"priority_pipeline",
     priority,
     table("pipeline", 2) + table("data", 2, zero3) + table("expert", 2),
     {"batch.micro_batch=2"}},
    {"priority_padded", priority, table("data", 2) + table("expert", 2, "padded = true\n")},
    {"priority_recompute", priority, table("data", 2) + table("expert", 2), {R"(memory.recompute="full")"}},
    {"soft_data", soft, table("data", 4, "zero = 2\n")},
    {"soft_zero_3", soft, table("data", 2, zero3)},
    {"soft_expert", soft, table("data", 4) + table("expert", 4)},
    {"soft_chunks", soft, table("data", 2) + table("expert", 2, "chunks = 2\n")},
    {"soft_tensor", soft, table("tensor", 4)},
    {"soft_tensor_rows", soft, table("tensor", 2, cut_rows) + table("data", 2) + table("expert", 2)},
    {"soft_pipeline", soft, table("pipeline", 2) + table("data", 2) + table("expert", 2), {"batch.micro_batch=2"}},
    {"soft_recompute", soft, table("data", 2) + table("expert", 2), {R"(memory.recompute="full")"}},
    {"soft_gated", soft, table("tensor", 2) + table("data", 2) + table("expert", 2), {R"(model.activation="swiglu")"}},
    {"conv_data", convolutions, table("data", 4)},
    {"conv_zero_3", convolutions, table("data", 2, zero3)},
    {"conv_tensor", convolutions, table("tensor", 2) + table("data", 2, "zero = 2\n")},
    {"conv_pipeline", convolutions, table("pipeline", 4), {"batch.micro_batch=2"}},
    {"conv_interleaved", convolutions, table("pipeline", 2, interleaved), {"batch.micro_batch=4"}},
    {"conv_recompute", convolutions, table("pipeline", 2), {R"(memory.recompute="full")", "batch.micro_batch=2"}},
    {"conv_experts",
     convolutions,
     table("data", 2) + table("expert", 2),
     {"moe.experts=4", "moe.every=2", R"(moe.router="batch_priority")", "moe.capacity_factor=1"}},
    {"conv_stages",
     convolutions,
     table("data", 2) + table("pipeline", 3),
     {"model.patch_size=8", "data.image_size=16", "data.sequence_length=4", "model.conv_widths=[4,6]",
      "model.conv_blocks=[1,2]", "batch.micro_batch=2"}},
};
class Images : public testing::TestWithParam<Cell> {};

TEST_P(Images, EqualOneRank) {
  const Cell& cell = GetParam();
  const VerifyReport report = verify(experiment(joined(cell.model, cell.overrides), cell.plugins + plugin), 2);
  EXPECT_TRUE(report.ok()) << differences(report);
}
INSTANTIATE_TEST_SUITE_P(Layouts, Images, testing::ValuesIn(cells), [](const auto& cell) { return cell.param.name; });

TEST(Vit, IsADecodersChainWithPatches) {
  const std::vector<Link> links = links_of(experiment(joined(soft, {"moe.every=2"}), plugin).settings);
  ASSERT_EQ(links.size(), 4u);
  EXPECT_EQ(links[0].parameters[0].params[0].global, (Shape{16, 16}));
  const auto has = [](const Link& link, const std::string& part) {
    for (const LayerSpecs& layer : link.parameters) {
      for (const ParamSpec& spec : layer.params) {
        if (spec.name.find(part) != std::string::npos) {
          return true;
        }
      }
    }
    return false;
  };
  EXPECT_TRUE(has(links[1], ".mlp."));
  EXPECT_FALSE(has(links[2], ".mlp."));
  EXPECT_TRUE(has(links[2], ".soft_moe.slots"));
  EXPECT_TRUE(has(links[2], ".soft_moe.experts.3.w2"));
}

TEST(Vit, RefusesWhatItCannotDo) {
  const auto refused = [](const Overrides& base, const Overrides& more) { return refusal(joined(base, more), plugin); };
  EXPECT_THAT(refused(dense, {R"(model.positions="rotary")"}), HasSubstr("write positions = \"learned\""));
  EXPECT_THAT(refused(dense, {"data.sequence_length=9"}), HasSubstr("9 patches of 4 x 4 and a class token"));
  EXPECT_THAT(refused(dense, {"model.patch_size=5"}), HasSubstr("5 does not divide data.image_size, 12"));
  EXPECT_THAT(refused(dense, {R"(data.source="synthetic")"}),
              HasSubstr("\"synthetic\" gives tokens, and a model of kind \"vit\" reads patches"));
  EXPECT_THAT(refused(dense, {R"(model.kind="decoder")"}), HasSubstr("\"shapes\" gives patches"));
  EXPECT_THAT(refused(dense, {"model.mtp_depth=1"}), HasSubstr("predicts no next token"));
  EXPECT_THAT(refused(priority, {"moe.capacity_factor=0", "moe.capacity_at_inference=0.5"}),
              HasSubstr("write moe.capacity_factor too"));
  EXPECT_THAT(refused(soft, {"moe.capacity_factor=1"}), HasSubstr("nothing is chosen or dropped"));
  EXPECT_THAT(refused({}, {R"(moe.router="soft")", "moe.top_k=1", "moe.z_loss=0"}),
              HasSubstr("write model.kind = \"vit\""));
  EXPECT_THAT(refusal(soft, table("sequence", 2) + plugin),
              HasSubstr("mixes the tokens of whole images, and axis 'sequence' divides them"));
  EXPECT_THAT(refusal(soft, table("tensor", 2, "experts = \"fold\"\n") + plugin),
              HasSubstr("mixes the tokens of whole images, and axis 'tensor' divides them"));
  EXPECT_THAT(refused(convolutions, {"model.conv_blocks=[1,1]"}), HasSubstr("1 numbers for 2 stages"));
  EXPECT_THAT(refused(convolutions, {"model.conv_blocks=[1,1]", "model.conv_widths=[4,4]"}),
              HasSubstr("write patch_size = 8"));
  EXPECT_THAT(refused(convolutions, {R"(model.pool="class")"}), HasSubstr("has no class token"));
  EXPECT_THAT(
      refusal(joined(convolutions, {"data.image_size=16", "data.sequence_length=16"}), table("sequence", 2) + plugin),
      HasSubstr("need whole images, and axis 'sequence' divides them"));
  EXPECT_THAT(refusal(convolutions, table("tensor", 2, cut_rows) + plugin),
              HasSubstr("need whole images, and axis 'tensor' divides them"));
}

}  // namespace
}  // namespace orthant::test::images_layouts_test
