// Dense models as mixtures: the same outputs, whole groups of slices, and a run that trains on from there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "apps/pretrained/export.h"
#include "apps/pretrained/import.h"
#include "apps/pretrained/sample_logits.h"
#include "apps/pretrained/upcycle.h"
#include "core/checkpoint/checkpoint.h"
#include "core/run/starting_weights.h"
#include "core/session/session.h"
#include "tests/support/error_of.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::upcycle_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class Upcycle : public testing::Test {
 protected:
  // A published dense model: qwen3, llama, mistral, qwen2.
  UpcycleOptions options(const std::string& family, std::int64_t experts) const {
    return {.source = paths::published_model(family), .output = folder_.path("mixture"), .experts = experts};
  }
  std::string refusal(const UpcycleOptions& o) const {
    const std::string said = test::error_of([&] { upcycle(o, keys_of_plugin); });
    EXPECT_FALSE(fs::exists(o.output));
    return said;
  }
  std::vector<float> tensor(const std::string& name, std::int64_t rows, std::int64_t columns) const {
    const CheckpointReader reader(starting_checkpoint(folder_.path("mixture")));
    std::vector<float> values(static_cast<std::size_t>(rows * columns));
    reader.read(name, {0, 0}, {rows, columns}, values.data());
    return values;
  }

  run_test::ProgramFolder folder_;
};

TEST_F(Upcycle, TheOutputsAreTheDenseOnes) {
  for (const char* family : {"llama", "mistral", "qwen2", "qwen3"}) {
    const UpcycleResult result = upcycle(options(family, 4), keys_of_plugin);
    ASSERT_TRUE(result.largest_difference.has_value());
    EXPECT_LT(*result.largest_difference, 1e-6) << family;
    EXPECT_EQ(result.blocks, 2);
    // Three more copies of [22, 24] thrice, and a router, in two blocks.
    EXPECT_EQ(result.parameters - result.dense_parameters, 2 * (3 * 3 * 22 * 24 + 4 * 24));
    EXPECT_EQ(result.active_parameters - result.dense_parameters, 2 * (3 * 22 * 24 + 4 * 24));
    fs::remove_all(folder_.path("mixture"));
  }
}

TEST_F(Upcycle, SlicesOfAGroupMakeUpTheWhole) {
  UpcycleOptions o = options("llama", 22);
  o.granularity = 11;
  o.top_k = 1;
  EXPECT_LT(*upcycle(o, keys_of_plugin).largest_difference, 1e-6);
  // The rows of a group are the same, those of two groups are not: a token takes one group whole.
  const std::vector<float> gate = tensor("model.layers.1.block_sparse_moe.gate.weight", 22, 24);
  const auto row = [&](int e) { return std::vector<float>(gate.begin() + e * 24, gate.begin() + (e + 1) * 24); };
  EXPECT_EQ(row(0), row(10));
  EXPECT_EQ(row(11), row(21));
  EXPECT_NE(row(0), row(11));
  // Each slice of the second group is a slice of the first.
  EXPECT_EQ(tensor("model.layers.0.block_sparse_moe.experts.3.w2.weight", 24, 2),
            tensor("model.layers.0.block_sparse_moe.experts.14.w2.weight", 24, 2));
  EXPECT_NE(tensor("model.layers.0.block_sparse_moe.experts.3.w2.weight", 24, 2),
            tensor("model.layers.0.block_sparse_moe.experts.4.w2.weight", 24, 2));
}

TEST_F(Upcycle, AnExportIsOfAFamilyThatComputesTheSame) {
  struct Case {
    const char *dense, *mixture, *note;
    std::int64_t granularity;
  };
  // Qwen2 has biases of queries, keys and values alone; slices need a factor, which Qwen3's mixtures have no key for.
  for (const Case& one : {Case{"qwen2", "granitemoe", "o_proj has biases, all zero", 1},
                          Case{"qwen3", "qwen3_moe", "moe.weight_scale = 2 is multiplied into", 2}}) {
    SCOPED_TRACE(one.dense);
    UpcycleOptions o = options(one.dense, 4);
    o.granularity = one.granularity;
    upcycle(o, keys_of_plugin);
    const ExportResult made =
        export_run({.run = folder_.path("mixture"), .output = folder_.path("out")}, keys_of_plugin);
    EXPECT_EQ(made.model_type, one.mixture);
    EXPECT_THAT(made.notes, testing::ElementsAre(HasSubstr(one.note)));
    import_model({.source = folder_.path("out"), .output = folder_.path("again"), .left_out = {}}, keys_of_plugin);
    const auto logits = [&](const std::string& run) {
      const std::vector<std::int32_t> token = sample_tokens(32, 38);
      const Config config = load_config((folder_.path(run) / "config.resolved.toml").string(), {}, keys_of_plugin);
      return Logits{run, sample_logits(config, starting_checkpoint(folder_.path(run)), token, 1)};
    };
    EXPECT_LT(compare_logits(logits("again"), logits("mixture")).difference, 1e-6);
    for (const char* folder : {"mixture", "out", "again"}) {
      fs::remove_all(folder_.path(folder));
    }
  }
}

TEST_F(Upcycle, TheTokenizerGoesWithTheMixture) {
  UpcycleOptions o = options("llama", 4);
  const fs::path dense = folder_.path("dense");
  fs::copy(o.source, dense);
  o.source = dense;
  // As many ids as the model: letters, a blank, digits.
  nlohmann::json vocabulary;
  for (int id = 0; id < 38; ++id) {
    vocabulary[id < 26 ? std::string(1, static_cast<char>('a' + id)) : id == 26 ? "\u0120" : std::to_string(id)] = id;
  }
  const nlohmann::json tokenizer = {
      {"added_tokens", nlohmann::json::array()},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", nlohmann::json::array()}}}};
  folder_.write("dense/tokenizer.json", tokenizer.dump());
  upcycle(o, keys_of_plugin);
  EXPECT_FALSE(fs::exists(folder_.path("mixture/pretrained/receipt.json"))) << "that is of the dense weights";
  EXPECT_FALSE(fs::exists(folder_.path("mixture/pretrained/config.json")));
  folder_.write("text.txt", "the mixture reads the same ids as the dense model");
  const auto score = [&](const std::string& model) {
    const auto result = folder_.orthant({"eval", model, "text.txt", "--json"});
    EXPECT_EQ(result.code, 0) << result.error;
    return nlohmann::json::parse(result.output)["files"][0]["nats_per_token"].get<double>();
  };
  EXPECT_NEAR(score("mixture"), score("dense"), 1e-5);
  export_run({.run = folder_.path("mixture"), .output = folder_.path("out")}, keys_of_plugin);
  EXPECT_TRUE(fs::exists(folder_.path("out/tokenizer.json")));
  // Without one, its ids are not taken for bytes.
  fs::remove_all(folder_.path("mixture/pretrained"));
  const auto refused = folder_.orthant({"eval", "mixture", "text.txt"});
  EXPECT_EQ(refused.code, 78);
  EXPECT_THAT(refused.error, HasSubstr("no tokenizer lies with the model"));
}

TEST_F(Upcycle, NoiseTellsTheCopiesApart) {
  UpcycleOptions o = options("qwen3", 4);
  o.noise = 0.1;
  const double difference = *upcycle(o, keys_of_plugin).largest_difference;
  EXPECT_GT(difference, 1e-3);
  EXPECT_LT(difference, 1);
  const std::string stem = "model.layers.0.block_sparse_moe.experts.";
  EXPECT_NE(tensor(stem + "0.w1.weight", 22, 24), tensor(stem + "1.w1.weight", 22, 24));
}

TEST_F(Upcycle, WhatDoesNotDivideIsRefused) {
  UpcycleOptions o = options("llama", 4);
  o.granularity = 3;
  EXPECT_THAT(refusal(o), HasSubstr("--experts 4 with --granularity 3"));
  o.granularity = 4;
  EXPECT_THAT(refusal(o), HasSubstr("does not divide the FFN's 22 channels"));
  o.granularity = 2;
  o.top_k = 3;
  EXPECT_THAT(refusal(o), HasSubstr("3 whole FFNs of 2 experts each are more than 4 experts"));
  o.top_k = std::int64_t{1} << 62;
  EXPECT_THAT(refusal(o), HasSubstr("whole FFNs"));
  o = options("mixtral", 4);
  EXPECT_THAT(refusal(o), HasSubstr("has 4 experts already"));
  o = options("llama", 4);
  o.noise = -1;
  EXPECT_THAT(refusal(o), HasSubstr("--noise -1"));
}

TEST_F(Upcycle, ARunGoesOnFromThere) {
  // A dense run of ours; its mixture begins with the loss where the dense one stands, in any layout.
  folder_.write(
      "c.toml",
      "[run]\nsteps = 6\nlog_every = 1\nname = \"dense\"\n[data]\npath = [\"text.txt\"]\nsequence_length = 16\n"
      "[batch]\nsequences = 4\n[model]\nlayers = 2\nd_model = 16\nheads = 2\nactivation = \"swiglu\"\n"
      "[optimizer]\nlr = 0.01\nschedule = \"constant\"\n");
  ASSERT_EQ(folder_.orthant({"train", "c.toml"}).code, 0);
  const auto made = folder_.orthant({"upcycle", "runs/dense", "--experts", "4", "-o", "mixture"});
  ASSERT_EQ(made.code, 0) << made.error;
  EXPECT_THAT(made.output,
              AllOf(HasSubstr("2 blocks with 4 experts, 2 of them for a token"), HasSubstr("of the largest")));
  folder_.write("on.toml",
                "extends = [\"mixture/model.toml\"]\n[run]\nsteps = 1\nname = \"on\"\n[train]\nfrom = \"mixture\"\n"
                "[data]\npath = [\"text.txt\"]\nsequence_length = 16\n[batch]\nsequences = 4\n[moe]\naux_loss = 0\n"
                "[plugins.data]\nsize = 2\n[plugins.expert]\nsize = 2\n");
  const auto on = folder_.orthant({"launch", "on.toml"});
  ASSERT_EQ(on.code, 0) << on.error;
  // The dense model's own loss on that first batch.
  const auto dense = folder_.orthant(
      run_test::with_set({"train", "c.toml"}, {"train.from=\"runs/dense\"", "run.steps=1", "run.name=\"again\""}));
  ASSERT_EQ(dense.code, 0) << dense.error;
  EXPECT_NEAR(folder_.losses("on").front(), folder_.losses("again").front(), 1e-5);
  EXPECT_LT(folder_.losses("on").front(), folder_.losses("dense").front() - 0.1);
}

}  // namespace
}  // namespace orthant::upcycle_test
