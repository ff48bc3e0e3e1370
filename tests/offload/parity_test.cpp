// What is offloaded changes no number: every place of every kind, beside every axis, has the bits of the layout
// without.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/parity.h"
#include "tests/support/paths.h"

namespace orthant::parity_test {
namespace {

using test::experiment;
using test::Overrides;

struct Layout {
  const char* name;
  Overrides overrides;
  std::string plugins;
};

std::string zero(int stage, int ranks = 2, const std::string& more = "") {
  return fmt::format("[plugins.data]\nsize = {}\nzero = {}\nwhole_below = 0\n{}", ranks, stage, more);
}
std::string out_of_tree(const std::string& name) {
  return fmt::format("[plugins.{}]\npath = \"{}\"\n", name, paths::out_of_tree(name));
}
const std::string pipeline = "[plugins.pipeline]\nsize = 2\n";
const std::string tensor = "[plugins.tensor]\nsize = 2\nsequence_parallel = true\n";
const std::string expert = "[plugins.expert]\nsize = 2\n";

// bf16 weights without a master, states in 8 bits.
const Overrides low_memory = {R"(run.dtype="bf16")", R"(optimizer.master_weights="none")",
                              R"(optimizer.state_dtype="8bit")", "model.d_model=32"};

const Overrides narrow_gradients = {R"(optimizer.gradient_dtype="bf16")"};

// Small parameters of their own beside the experts' and the router's matrices.
const Overrides with_biases = {R"(model.activation="clamped_swiglu")",
                               "model.attention_sinks=true",
                               "model.biases=true",
                               "model.output_bias=true",
                               "moe.router_bias=true",
                               "moe.expert_bias=true"};

const Layout layouts[] = {
    {"one_rank", {}, ""},
    {"one_rank_micro_batches", {"batch.micro_batch=2"}, ""},
    {"bf16", {R"(run.dtype="bf16")", "batch.micro_batch=4"}, ""},
    {"tied_odd", {"model.tie_embeddings=true", "model.vocab_size=23", "moe.capacity_factor=1.0"}, ""},
    {"sgd_recompute", {R"(optimizer.name="sgd")", R"(memory.recompute="full")"}, ""},
    {"low_memory", low_memory, ""},
    {"low_memory_zero_1", test::joined(low_memory, {"batch.micro_batch=2"}), zero(1)},
    {"low_memory_zero_3", low_memory, zero(3)},
    {"narrow_gradients", test::joined(narrow_gradients, {"batch.micro_batch=2"}), ""},
    {"narrow_gradients_zero_2", test::joined(narrow_gradients, {"batch.micro_batch=2"}), zero(2)},
    {"narrow_gradients_low_memory", test::joined(narrow_gradients, low_memory), zero(1)},
    {"zero_0", {"batch.micro_batch=2"}, zero(0)},
    {"zero_1_bf16", {R"(run.dtype="bf16")", "batch.micro_batch=2"}, zero(1)},
    {"zero_1", {}, zero(1) + expert},
    {"zero_2", {"batch.micro_batch=2"}, zero(2)},
    {"zero_3", {"batch.micro_batch=2", "optimizer.clip_grad_norm=0.05"}, zero(3)},
    {"zero_3_bf16", {R"(run.dtype="bf16")"}, zero(3, 4) + expert},
    {"zero_3_layered", {"batch.micro_batch=2"}, zero(3, 2, "layered = true\n")},
    {"zero_3_hybrid", {}, zero(3, 4, "shard_ranks = 2\n")},
    {"tensor", {R"(run.dtype="bf16")"}, tensor},
    {"pipeline_tied", {"model.tie_embeddings=true", "model.layers=3", "batch.micro_batch=2"}, pipeline + zero(1)},
    {"interleaved",
     {"model.layers=4", "batch.micro_batch=2"},
     "[plugins.pipeline]\nsize = 2\nschedule = \"interleaved\"\nchunks = 2\n"},
    {"all_axes", {"batch.micro_batch=2"}, pipeline + zero(3) + tensor + expert},
    {"adafactor_zero_2", {R"(optimizer.name="adafactor")"}, zero(2) + expert + out_of_tree("adafactor")},
    {"adafactor_tensor_bf16",
     {R"(optimizer.name="adafactor")", R"(run.dtype="bf16")"},
     tensor + out_of_tree("adafactor")},
    {"lamb_low_memory_zero_1", test::joined(low_memory, {R"(optimizer.name="lamb")", "batch.micro_batch=2"}),
     zero(1) + out_of_tree("lamb")},
    {"biases", test::joined(with_biases, {"batch.micro_batch=2"}), ""},
    {"biases_low_memory", test::joined(low_memory, with_biases), ""},
    {"biases_zero_3", test::joined(with_biases, {R"(run.dtype="bf16")"}), zero(3) + expert},
};

struct Places {
  const char* name;
  const char* device;
  std::string keys;
};
std::string all(const char* place) {
  return fmt::format("states = \"{0}\"\ngradients = \"{0}\"\nweights = \"{0}\"\nactivations = \"{0}\"\n", place);
}
const Places places[] = {
    {"states", "cpu", "states = \"host\"\n"},
    {"states_late", "late", "states = \"host\"\n"},
    {"states_on_disk", "guarded", "states = \"nvme\"\n"},
    {"gradients", "guarded", "gradients = \"host\"\n"},
    {"gradients_on_disk_late", "late", "gradients = \"nvme\"\n"},
    {"weights", "guarded", "weights = \"host\"\n"},
    {"weights_on_disk", "late", "weights = \"nvme\"\n"},
    {"states_gradients", "late_sides", "states = \"host\"\ngradients = \"host\"\n"},
    {"states_weights", "late_sides", "states = \"host\"\nweights = \"host\"\n"},
    {"states_on_disk_weights", "guarded", "states = \"nvme\"\nweights = \"host\"\n"},
    {"all", "guarded", all("host")},
    {"all_late", "late", all("host")},
    {"all_on_disk", "cpu", all("nvme")},
    {"all_on_disk_guarded", "guarded", all("nvme")},
    {"all_on_disk_late", "late", all("nvme")},
    {"all_on_disk_late_sides", "late_sides", all("nvme")},
    {"half", "late", all("host") + "device_fraction = 0.5\n"},
};

class Offload : public testing::TestWithParam<std::size_t> {};

TEST_P(Offload, HasTheBitsOfTheLayoutWithout) {
  const Layout& layout = layouts[GetParam()];
  const Snapshot without = take_snapshot(experiment(layout.overrides, layout.plugins), 3);
  // Each layout meets a third of the places, neighbours different thirds.
  for (std::size_t p = GetParam() % 3; p < std::size(places); p += 3) {
    const Places& place = places[p];
    SCOPED_TRACE(place.name);
    // Last, though its keeper is the chain's first.
    const std::string table = fmt::format("[plugins.offload]\ndirectory = \"{}\"\n{}", testing::TempDir(), place.keys);
    Config config = experiment(layout.overrides, layout.plugins + table);
    config.settings.run.device = place.device;
    test::expect_same_bits(take_snapshot(config, 3), without);
  }
}

INSTANTIATE_TEST_SUITE_P(Parity, Offload, testing::Range<std::size_t>(0, std::size(layouts)),
                         [](const auto& number) { return layouts[number.param].name; });

}  // namespace
}  // namespace orthant::parity_test
