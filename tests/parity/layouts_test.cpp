// A layout changes speed and memory, never the mathematics: many layouts of many models, each against one rank.
#include <gtest/gtest.h>

#include "tests/support/parity.h"

namespace orthant::layouts_test {
namespace {

using test::axes;
using test::Model;
using test::Overrides;
using test::reference_of;

struct Layout2 {
  int data, expert;
};
std::ostream& operator<<(std::ostream& out, const Layout2& l) {
  return out << "data " << l.data << " expert " << l.expert;
}

// The optimizer of these experiments amplifies no rounding.
void expect_parity(const Overrides& overrides, const std::string& plugins, int ranks) {
  test::expect_parity(overrides, plugins, {.ranks = ranks, .later_gradients = 1e-5});
}

// --- the table: layouts x routers x capacity

class Table : public testing::TestWithParam<std::tuple<Layout2, Model>> {};

TEST_P(Table, EqualsOneRank) {
  const auto& [layout, routing] = GetParam();
  expect_parity(routing.overrides, axes(layout.data, layout.expert), layout.data);
}

const Layout2 layouts[] = {{1, 0}, {2, 0}, {4, 0}, {1, 1}, {2, 1}, {2, 2}, {4, 1}, {4, 2}, {4, 4}};
const Model routings[] = {
    {"switch_dropless", {R"(moe.router="switch")", "moe.top_k=1"}},
    {"switch_capacity", {R"(moe.router="switch")", "moe.top_k=1", "moe.capacity_factor=1.0"}},
    {"gshard_dropless", {R"(moe.router="gshard")"}},
    {"gshard_capacity", {R"(moe.router="gshard")", "moe.capacity_factor=1.0"}},
    {"topk_dropless", {}},
    {"topk_capacity", {"moe.capacity_factor=1.0", R"(moe.drop_policy="probability")"}},
    {"expert_choice", {R"(moe.router="expert_choice")", "moe.top_k=0", "moe.capacity_factor=1.5"}},
};

std::string name_of_cell(const testing::TestParamInfo<std::tuple<Layout2, Model>>& info) {
  const auto& [layout, routing] = info.param;
  return fmt::format("data{}_expert{}_{}", layout.data, layout.expert, routing.name);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Table, testing::Combine(testing::ValuesIn(layouts), testing::ValuesIn(routings)),
                         name_of_cell);

// Eight ranks.
const Layout2 large_layouts[] = {{8, 0}, {8, 1}, {8, 2}, {8, 4}};
INSTANTIATE_TEST_SUITE_P(LargeLayouts, Table,
                         testing::Combine(testing::ValuesIn(large_layouts), testing::ValuesIn(routings)), name_of_cell);

// Capacity 1 does drop choices in these experiments: the table would prove little otherwise.
TEST(TableOfLayouts, CapacityDropsChoicesAndAllAreCounted) {
  for (const Model& routing : routings) {
    const bool limited = routing.name.find("capacity") != std::string::npos;
    for (const StepReport& report : reference_of(routing.overrides).reports) {
      std::int64_t full = 0;
      for (const LayerCounters& layer : report.layers) {
        full += layer.dropped_by_capacity;
        std::int64_t load = 0, kept = 0;
        for (std::size_t e = 0; e < layer.load.size(); ++e) {
          load += layer.load[e];
          kept += layer.kept[e];
        }
        EXPECT_EQ(load + layer.dropped_by_chance, layer.choices) << "load is counted before capacity";
        EXPECT_EQ(kept + layer.dropped_by_capacity, load);
      }
      EXPECT_EQ(full > 0, limited) << routing.name;
    }
  }
}

// --- what a model can be, each over the layout with most sharding and over the plain ones

class Models : public testing::TestWithParam<Model> {};

TEST_P(Models, EqualOneRank) {
  const Model& model = GetParam();
  expect_parity(model.overrides, axes(2, 2), 2);
  expect_parity(model.overrides, axes(4, 2), 4);
}

const Model models[] = {
    {"micro_batches", {"batch.sequences=16", "batch.micro_batch=2"}},
    {"micro_batches_of_one", {"batch.micro_batch=1", "moe.capacity_factor=1.0"}},
    {"groups_of_half_a_sequence", {"moe.group_tokens=6", "moe.capacity_factor=1.0"}},
    {"groups_of_two_sequences", {"moe.group_tokens=24", "moe.capacity_factor=1.0"}},
    {"dropout", {"model.dropout=0.3"}},
    {"jitter", {"moe.jitter=0.3"}},
    {"dropout_jitter_gshard_micro_batches",
     {"model.dropout=0.2", "moe.jitter=0.2", R"(moe.router="gshard")", "batch.micro_batch=1"}},
    {"bf16", {R"(run.dtype="bf16")"}},
    {"some_blocks_dense", {"moe.every=2", "model.layers=3"}},
    {"shared_experts", {"moe.shared_experts=2", "moe.d_expert=8"}},
    {"tied_embeddings", {"model.tie_embeddings=true"}},
    {"gpt2", {R"(model.positions="learned")", R"(model.norm="layernorm")", R"(model.activation="gelu")"}},
    {"relu", {R"(model.activation="relu")"}},
    {"recompute_selective", {R"(memory.recompute="selective")", "moe.shared_experts=1", "moe.every=2"}},
    {"recompute_full",
     {R"(memory.recompute="full")", "model.dropout=0.2", "moe.jitter=0.2", "moe.capacity_factor=1.0"}},
    {"few_kv_heads", {"model.kv_heads=2"}},
    {"sgd", {R"(optimizer.name="sgd")"}},
    {"clipping", {"optimizer.clip_grad_norm=0.05"}},
    {"no_auxiliary_loss", {"moe.aux_loss=0", "moe.z_loss=0"}},
    {"large_auxiliary_loss", {"moe.aux_loss=10", "moe.z_loss=1"}},
};

INSTANTIATE_TEST_SUITE_P(Parity, Models, testing::ValuesIn(models), [](const auto& model) { return model.param.name; });

// A model without experts has nothing for the expert axis.
TEST(Parity, DenseModel) {
  expect_parity({"moe.experts=0"}, axes(4), 4);
}

// More experts than a micro-batch has choices: most experts, and whole ranks, get no row in some layer.
TEST(Parity, MoreExpertsThanTokens) {
  const Overrides overrides = {"moe.experts=32", "data.sequence_length=2", "batch.sequences=4", "moe.top_k=1",
                               R"(moe.router="switch")"};
  expect_parity(overrides, axes(4, 4), 4);
  expect_parity(overrides, axes(2, 2), 2);
}

// One token a rank, and one in all.
TEST(Parity, OneToken) {
  const Overrides four = {"data.sequence_length=1", "batch.sequences=4", "moe.capacity_factor=1.0"};
  expect_parity(four, axes(4, 4), 4);
  const Overrides one = {"data.sequence_length=1", "batch.sequences=1", "moe.capacity_factor=1.0"};
  expect_parity(one, axes(1, 1), 1);
}

// The order of the tables says which axis is the outer one; an axis that is carved may come first.
TEST(Parity, OrderOfTables) {
  expect_parity({}, axes(0, 2) + axes(4), 4);
}

// Gradients travel in buckets of any size.
TEST(Parity, SmallBuckets) {
  expect_parity({}, "[plugins.data]\nsize = 4\nbucket_mb = 0.001\n", 4);
}

}  // namespace
}  // namespace orthant::layouts_test
