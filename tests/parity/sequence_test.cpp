// Slices of sequences on several ranks: Ulysses and ring attention against one rank. (Routed layers: layouts_test.cpp.)
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/parity.h"
#include "tests/support/paths.h"

namespace orthant::sequence_test {
namespace {

using test::joined;
using test::Model;
using test::Overrides;
using test::refusal;

// Sixteen positions: eight parts of two for the zig-zag of four ranks.
const Model models[] = {
    {"plain", {}},
    {"few_kv_heads", {"model.kv_heads=2"}},
    {"one_kv_head", {"model.kv_heads=1"}},
    {"learned_positions", {R"(model.positions="learned")", R"(model.norm="layernorm")"}},
    {"normed_heads", {"model.qk_norm=true", "model.biases=true", "model.head_dim=6", "model.kv_heads=2"}},
    {"window", {"model.sliding_window=5"}},
    {"sinks", {"model.attention_sinks=true", "model.kv_heads=2"}},
    {"dropout", {"model.dropout=0.2"}},
    {"micro_batches", {"batch.micro_batch=2"}},
    {"packed_documents",
     {R"(data.source="text")", "data.path=\"" + paths::source("README.md") + "\"", "model.vocab_size=256",
      R"(data.documents="packed")", R"(data.separator=" ")"}},
    {"bf16", {R"(run.dtype="bf16")"}},
};

std::string table(const char* method, int size) {
  return fmt::format("[plugins.sequence]\nsize = {}\nmethod = \"{}\"\n", size, method);
}

void expect_parity(const Overrides& overrides, const std::string& plugins, int ranks) {
  test::expect_parity(overrides, plugins, {.ranks = ranks});
}

class SequenceModels : public testing::TestWithParam<std::tuple<Model, const char*, int>> {};

TEST_P(SequenceModels, EqualsOneRank) {
  const auto& [model, method, size] = GetParam();
  expect_parity(joined(model.overrides, {"moe.experts=0", "data.sequence_length=16"}), table(method, size), size);
}

INSTANTIATE_TEST_SUITE_P(Parity, SequenceModels,
                         testing::Combine(testing::ValuesIn(models), testing::Values("ulysses", "ring"),
                                          testing::Values(2, 4)),
                         [](const auto& made) {
                           return fmt::format("{}_{}{}", std::get<0>(made.param).name, std::get<1>(made.param),
                                              std::get<2>(made.param));
                         });

TEST(SequenceAxis, WithOtherAxes) {
  const Overrides dense = {"moe.experts=0", "data.sequence_length=16", "model.kv_heads=2"};
  for (const char* method : {"ulysses", "ring"}) {
    expect_parity(dense, "[plugins.data]\nsize = 2\n" + table(method, 2), 4);
    expect_parity(dense, table(method, 4) + "[plugins.data]\nsize = 2\n", 8);
  }
}

TEST(SequenceAxis, OnTheGuardedDevice) {
  for (const char* method : {"ulysses", "ring"}) {
    expect_parity({"moe.experts=0", "data.sequence_length=16", "model.kv_heads=1", R"(run.device="guarded")"},
                  table(method, 4), 4);
  }
}

TEST(SequenceAxis, RefusesWhatDoesNotDivide) {
  using testing::AllOf;
  using testing::HasSubstr;
  EXPECT_THAT(refusal({"data.sequence_length=18"}, table("ulysses", 4)),
              AllOf(HasSubstr("18 positions"), HasSubstr("axis 'sequence'"), HasSubstr("size = 4")));
  EXPECT_THAT(refusal({"data.sequence_length=12"}, table("ring", 4)), HasSubstr("12 positions of a sequence"))
      << "zig-zag needs eight parts";
  EXPECT_THAT(refusal({"data.sequence_length=24"}, table("ulysses", 8)), HasSubstr("dim 'head'"));
  EXPECT_THAT(refusal({"data.sequence_length=24", "model.heads=8", "model.kv_heads=2"}, table("ulysses", 3)),
              HasSubstr("dim 'head'"));
}

}  // namespace
}  // namespace orthant::sequence_test
