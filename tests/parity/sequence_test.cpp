// Slices of sequences on several ranks: Ulysses and ring attention against one rank. (Routed layers: layouts_test.cpp.)
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/run/verify.h"
#include "tests/support/experiment.h"
#include "tests/support/paths.h"

namespace orthant {
namespace {

using test::experiment;
using test::Overrides;

struct Case {
  const char* name;
  Overrides overrides;
};

// Sixteen positions: eight parts of two for the zig-zag of four ranks.
const Case models[] = {
    {"plain", {}},
    {"few_kv_heads", {"model.kv_heads=2"}},
    {"one_kv_head", {"model.kv_heads=1"}},
    {"learned_positions", {R"(model.positions="learned")", R"(model.norm="layernorm")"}},
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

void expect_parity(const Config& config, int ranks) {
  const Snapshot layout = take_snapshot(config, 2);
  ASSERT_EQ(layout.world_size, ranks);
  const VerifyReport report = compare(layout, take_snapshot(one_rank(config), 2), config.settings.run.dtype);
  EXPECT_TRUE(report.ok()) << report.first_difference;
}

class SequenceModels : public testing::TestWithParam<std::tuple<Case, const char*, int>> {};

TEST_P(SequenceModels, EqualsOneRank) {
  const auto& [model, method, size] = GetParam();
  Overrides overrides = model.overrides;
  overrides.insert(overrides.end(), {"moe.experts=0", "data.sequence_length=16"});
  const Config config = experiment(overrides, table(method, size));
  expect_parity(config, size);
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
    expect_parity(experiment(dense, "[plugins.data]\nsize = 2\n" + table(method, 2)), 4);
    expect_parity(experiment(dense, table(method, 4) + "[plugins.data]\nsize = 2\n"), 8);
  }
}

TEST(SequenceAxis, OnTheGuardedDevice) {
  for (const char* method : {"ulysses", "ring"}) {
    expect_parity(
        experiment({"moe.experts=0", "data.sequence_length=16", "model.kv_heads=1", R"(run.device="guarded")"},
                   table(method, 4)),
        4);
  }
}

std::string refusal(const Overrides& overrides, const std::string& plugins) {
  try {
    check_layout(experiment(overrides, plugins));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
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
}  // namespace orthant
