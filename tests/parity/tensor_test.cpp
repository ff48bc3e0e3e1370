// The tensor axis against one rank: split heads, FFNs, experts and vocabulary, rows cut between them or not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/parity.h"
#include "tests/support/paths.h"

namespace orthant::tensor_test {
namespace {

using test::axes;
using test::joined;
using test::Model;
using test::Overrides;
using test::refusal;

std::string table(int size, bool cut_rows = false, const char* experts = "split") {
  return fmt::format("[plugins.tensor]\nsize = {}\nsequence_parallel = {}\nexperts = \"{}\"\n", size, cut_rows,
                     experts);
}

void expect_parity(const Overrides& overrides, const std::string& plugins, int ranks) {
  test::expect_parity(overrides, plugins, {.ranks = ranks});
}

// --- dense models

const Model dense_models[] = {
    {"plain", {}},
    {"two_kv_heads", {"model.kv_heads=2"}},
    {"one_kv_head", {"model.kv_heads=1"}},
    {"tied_embeddings", {"model.tie_embeddings=true"}},
    {"normed_heads", {"model.qk_norm=true", "model.biases=true"}},
    {"one_normed_kv_head", {"model.qk_norm=true", "model.biases=true", "model.kv_heads=1", "model.head_dim=10"}},
    {"normed_heads_learned_positions", {"model.qk_norm=true", R"(model.positions="learned")", "model.head_dim=7"}},
    {"learned_positions", {R"(model.positions="learned")", R"(model.norm="layernorm")", R"(model.activation="gelu")"}},
    {"tied_learned_dropout",
     {"model.tie_embeddings=true", R"(model.positions="learned")", "model.dropout=0.2", "model.kv_heads=1"}},
    {"dropout", {"model.dropout=0.2"}},
    {"micro_batches", {"batch.micro_batch=2", "model.kv_heads=1"}},
    {"packed_documents",
     {R"(data.source="text")", "data.path=\"" + paths::source("README.md") + "\"", "model.vocab_size=256",
      R"(data.documents="packed")", R"(data.separator=" ")"}},
    // Parts of sums are rounded to bf16; Adam would turn the rounding of gradients near zero into steps of full size.
    {"bf16", {R"(run.dtype="bf16")", "model.kv_heads=1", R"(optimizer.name="sgd")"}},
};

class TensorDense : public testing::TestWithParam<std::tuple<Model, int, bool>> {};

TEST_P(TensorDense, EqualsOneRank) {
  const auto& [model, size, cut_rows] = GetParam();
  expect_parity(joined(model.overrides, {"moe.experts=0"}), table(size, cut_rows), size);
}

INSTANTIATE_TEST_SUITE_P(Parity, TensorDense,
                         testing::Combine(testing::ValuesIn(dense_models), testing::Values(2, 4), testing::Bool()),
                         [](const auto& made) {
                           return fmt::format("{}_{}{}", std::get<0>(made.param).name, std::get<1>(made.param),
                                              std::get<2>(made.param) ? "_cut_rows" : "");
                         });

// --- routed models

const Model routed_models[] = {
    {"dropless", {}},
    {"capacity", {"moe.capacity_factor=1.0", R"(moe.drop_policy="probability")"}},
    {"switch", {R"(moe.router="switch")", "moe.top_k=1", "moe.capacity_factor=1.0"}},
    // Seed 1 is a case at the edge: on one processor rounding moves the z loss of its second step by 1.2e-6.
    {"gshard", {R"(moe.router="gshard")", "moe.capacity_factor=1.0", "run.seed=2"}},
    {"expert_choice", {R"(moe.router="expert_choice")", "moe.top_k=0", "moe.capacity_factor=1.5"}},
    {"shared_experts", {"moe.shared_experts=2", "moe.d_expert=8"}},
    {"jitter_dropout_micro_batches",
     {"moe.jitter=0.2", "model.dropout=0.2", "batch.micro_batch=2", "moe.capacity_factor=1.0"}},
    {"large_auxiliary_loss", {"moe.aux_loss=10", "moe.z_loss=1"}},
    {"relu_recomputed", {R"(model.activation="relu")", R"(memory.recompute="full")"}},
};

class TensorRouted : public testing::TestWithParam<std::tuple<Model, bool, const char*>> {};

TEST_P(TensorRouted, EqualsOneRank) {
  const auto& [model, cut_rows, experts] = GetParam();
  for (int size : {2, 4}) {
    expect_parity(model.overrides, table(size, cut_rows, experts), size);
  }
}

INSTANTIATE_TEST_SUITE_P(Parity, TensorRouted,
                         testing::Combine(testing::ValuesIn(routed_models), testing::Bool(),
                                          testing::Values("split", "fold")),
                         [](const auto& made) {
                           return fmt::format("{}_{}{}", std::get<0>(made.param).name, std::get<2>(made.param),
                                              std::get<1>(made.param) ? "_cut_rows" : "");
                         });

// --- with other axes

TEST(TensorAxis, WithOtherAxes) {
  const Overrides model = {"model.kv_heads=1", "moe.capacity_factor=1.0", "moe.shared_experts=1",
                           "model.tie_embeddings=true"};
  for (const bool cut_rows : {false, true}) {
    SCOPED_TRACE(cut_rows);
    expect_parity(model, axes(2) + table(2, cut_rows), 4);
    expect_parity(model, table(2, cut_rows) + axes(2), 4);
    expect_parity(model, axes(2, 2) + table(2, cut_rows), 4);
    expect_parity(model, axes(2) + table(4, cut_rows) + axes(0, 2), 8);
    // Experts carved from the ranks of this axis, and from those of both.
    expect_parity(model, table(2, cut_rows, "fold") + axes(0, 2), 2);
    expect_parity(model, axes(2, 4) + table(2, cut_rows, "fold"), 4);
  }
}

TEST(TensorAxis, WithSlicesOfSequences) {
  for (const bool cut_rows : {false, true}) {
    for (const char* method : {"ulysses", "ring"}) {
      SCOPED_TRACE(fmt::format("{} {}", method, cut_rows));
      const std::string sequence = fmt::format("[plugins.sequence]\nsize = 2\nmethod = \"{}\"\n", method);
      expect_parity({"model.kv_heads=1"}, sequence + table(2, cut_rows), 4);
      expect_parity({"model.kv_heads=2", "moe.capacity_factor=1.0"}, sequence + table(2, cut_rows, "fold") + axes(0, 4),
                    4);
    }
  }
}

TEST(TensorAxis, OnTheGuardedDevice) {
  for (const bool cut_rows : {false, true}) {
    for (const char* experts : {"split", "fold"}) {
      expect_parity({"model.kv_heads=1", R"(run.device="guarded")"}, table(4, cut_rows, experts), 4);
    }
  }
}

TEST(TensorAxis, OneRankBindsNothing) {
  expect_parity({}, table(1, true, "fold"), 1);
}

TEST(TensorAxis, RefusesWhatDoesNotDivide) {
  using testing::AllOf;
  using testing::HasSubstr;
  EXPECT_THAT(refusal({"model.heads=3", "model.d_model=12"}, table(2)),
              AllOf(HasSubstr("dim 'head'"), HasSubstr("2 ranks of axis 'tensor'"), HasSubstr("model.heads")));
  EXPECT_THAT(refusal({"model.heads=6", "model.kv_heads=3", "model.d_model=12"}, table(2)),
              AllOf(HasSubstr("3 units of dim 'head' of 'model.layers.0.self_attn.k_proj.weight'"),
                    HasSubstr("one must divide the other"), HasSubstr("or model.kv_heads (from")));
  EXPECT_THAT(refusal({"model.d_ff=18", "moe.experts=0"}, table(4)),
              AllOf(HasSubstr("18 units of dim 'ffn'"), HasSubstr("size = 4"), HasSubstr("model.d_ff")));
  EXPECT_THAT(refusal({"moe.d_expert=6"}, table(4)),
              AllOf(HasSubstr("6 units of dim 'ffn' in region 'experts'"), HasSubstr("or moe.d_expert (from")));
  EXPECT_THAT(refusal({"model.d_ff=18"}, table(4)), HasSubstr("or model.d_ff (from")) << "d_expert is d_ff";
  EXPECT_THAT(refusal({"moe.d_expert=5", "moe.shared_experts=2"}, table(4)),
              AllOf(HasSubstr("10 units of dim 'ffn' in region 'ffn'"), HasSubstr("or moe.d_expert (from")));
  EXPECT_EQ(refusal({"moe.d_expert=6"}, table(4, false, "fold")), "(accepted with 4 ranks)") << "experts stay whole";
  EXPECT_THAT(refusal({"model.vocab_size=25"}, table(2)),
              AllOf(HasSubstr("25 units of dim 'vocab'"), HasSubstr("model.vocab_size")));
  EXPECT_THAT(refusal({"model.heads=1", "model.kv_heads=1"}, table(2)),
              HasSubstr("1 unit of dim 'head' in region 'attention' does not divide"));
  EXPECT_THAT(refusal({"model.qk_norm=true", R"(model.qk_norm_over="all")"}, table(2)),
              AllOf(HasSubstr("1 unit of dim 'head' in region 'attention'"), HasSubstr("2 ranks of axis 'tensor'"),
                    HasSubstr("or model.qk_norm_over (from")));
  EXPECT_THAT(refusal({"moe.shared_experts=1", "moe.d_shared=18"}, table(4)),
              AllOf(HasSubstr("18 units of dim 'ffn' in region 'ffn'"), HasSubstr("or moe.d_shared (from")));
  EXPECT_THAT(refusal({"data.sequence_length=3", "batch.micro_batch=1"}, table(2, true)),
              AllOf(HasSubstr("the 3 tokens of a micro-batch do not divide"), HasSubstr("region 'norm'")));
}

// Where a block is computed again the gathered inputs are kept to its backward pass, else they are gathered once more.
TEST(TensorAxis, InputsThatAreGatheredAgainHaveTheirBits) {
  const Model models[] = {
      {"routed", {"moe.shared_experts=1", "moe.shared_gate=true"}},
      {"biases", {R"(model.activation="clamped_swiglu")", "model.biases=true", "moe.expert_bias=true"}},
      {"normed_heads", {"moe.experts=0", "model.kv_heads=1", "model.qk_norm=true", "model.mtp_depth=1"}},
      {"latent",
       {R"(model.attention="latent")", "model.kv_lora_rank=8", "model.qk_nope_head_dim=4", "model.qk_rope_head_dim=4",
        "model.v_head_dim=4", "model.q_lora_rank=8", "moe.every=2"}},
      {"partly_frozen", {R"(train.freeze=["*mlp*", "*layers.0.self_attn*"])", "moe.every=2"}}};
  for (const Model& model : models) {
    SCOPED_TRACE(model.name);
    const auto with = [&](const char* recompute) {
      return take_snapshot(
          test::experiment(joined(model.overrides, {recompute, "batch.micro_batch=4"}), table(2, true)), 2);
    };
    test::expect_same_bits(with(R"(memory.recompute="none")"), with(R"(memory.recompute="full")"));
  }
}

// All that does not divide at once, and each once, however many blocks have it.
TEST(TensorAxis, RefusesAllThatDoesNotDivide) {
  const std::string all = refusal({"model.heads=6", "model.kv_heads=3", "model.d_model=12", "model.vocab_size=25",
                                   "model.d_ff=18", "moe.d_expert=10", "moe.every=2", "batch.sequences=9"},
                                  axes(2) + table(4));
  for (const char* dim :
       {"9 units of dim 'batch'", "6 units of dim 'head'", "3 units of dim 'head'", "25 units of dim 'vocab'",
        "18 units of dim 'ffn' in region 'ffn'", "10 units of dim 'ffn' in region 'experts'"}) {
    const std::size_t found = all.find(dim);
    EXPECT_NE(found, std::string::npos) << dim << " in\n" << all;
    EXPECT_EQ(all.find(dim, found + 1), std::string::npos) << dim << " in\n" << all;
  }
}

}  // namespace
}  // namespace orthant::tensor_test
