// Streams that run later than they are told to (core/device/cpu/late.h), the main ones or the side ones: every layout
// waits for what it needs, and has the bits that it has on the CPU, whose main stream runs at once and so hides a wait
// that is missing.
#include <gtest/gtest.h>

#include "tests/support/parity.h"

namespace orthant::late_test {
namespace {

using test::axes;
using test::experiment;
using test::Overrides;

struct Layout3 {
  const char* name;
  Overrides overrides;
  std::string plugins;
};
std::ostream& operator<<(std::ostream& out, const Layout3& layout) {
  return out << layout.name;
}

class Late : public testing::TestWithParam<Layout3> {};

TEST_P(Late, HasTheBitsOfTheCpu) {
  const Layout3& layout = GetParam();
  Config config = experiment(layout.overrides, layout.plugins);
  const Snapshot at_once = take_snapshot(config, 2);
  for (const char* device : {"late", "late_sides"}) {
    SCOPED_TRACE(device);
    config.settings.run.device = device;
    test::expect_same_bits(take_snapshot(config, 2), at_once);
  }
}

const Overrides dense = {"moe.experts=0", "data.sequence_length=16"};
const Layout3 layouts[] = {
    {"one_rank", {"moe.capacity_factor=1.0"}, ""},
    {"ring", dense, "[plugins.sequence]\nsize = 2\nmethod = \"ring\"\n"},
    {"ulysses", dense, "[plugins.sequence]\nsize = 2\n"},
    {"expert_chunks", {"moe.experts=8"}, axes(2) + "[plugins.expert]\nsize = 2\nchunks = 2\n"},
    {"zero_3", {"batch.micro_batch=2"}, "[plugins.data]\nsize = 2\nzero = 3\nwhole_below = 0\n"},
    {"small_buckets", {}, "[plugins.data]\nsize = 2\nbucket_mb = 0.001\n"},
    {"pipeline", {"batch.micro_batch=2", "model.tie_embeddings=true"}, "[plugins.pipeline]\nsize = 2\n" + axes(2)},
    {"zero_2_recompute",
     {R"(memory.recompute="full")", "model.dropout=0.1", "optimizer.clip_grad_norm=0.05"},
     "[plugins.data]\nsize = 4\nzero = 2\nwhole_below = 0\n[plugins.expert]\nsize = 2\n"},
    {"layered", {"batch.micro_batch=2"}, "[plugins.data]\nsize = 2\nzero = 3\nwhole_below = 0\nlayered = true\n"},
    {"two_nodes",
     {"moe.experts=8", R"(moe.router="gshard")"},
     axes(4) + "[plugins.expert]\nsize = 4\ndispatch = \"hierarchical\"\nnode_ranks = 2\n"},
    {"interleaved",
     {"model.layers=4", "batch.micro_batch=2"},
     "[plugins.pipeline]\nsize = 2\nschedule = \"interleaved\"\nchunks = 2\n"},
    {"zero_2_narrow_gradients",
     {"batch.micro_batch=2", R"(optimizer.gradient_dtype="bf16")"},
     "[plugins.data]\nsize = 2\nzero = 2\nwhole_below = 0\n"},
    {"tensor_latent",
     {R"(model.attention="latent")", "model.kv_lora_rank=8", "model.qk_nope_head_dim=4", "model.qk_rope_head_dim=4",
      "model.v_head_dim=4", "moe.shared_experts=1", "batch.micro_batch=4"},
     "[plugins.tensor]\nsize = 2\nsequence_parallel = true\n"},
    {"tensor", {}, "[plugins.tensor]\nsize = 2\nsequence_parallel = true\n"},
};
INSTANTIATE_TEST_SUITE_P(Parity, Late, testing::ValuesIn(layouts),
                         [](const auto& layout) { return layout.param.name; });

}  // namespace
}  // namespace orthant::late_test
