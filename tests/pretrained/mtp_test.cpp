// Blocks of multi-token prediction, written as DeepSeek-V3 and GLM-4.5 publish them, and read again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/pretrained/export.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/safetensors.h"
#include "core/run/starting_weights.h"
#include "tests/pretrained/import_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::mtp_pretrained_test {
namespace {

namespace fs = std::filesystem;
using launch_test::read_file;
using testing::HasSubstr;

ImportResult import_with_mtp(const fs::path& run, const fs::path& source) {
  return import_model({.source = source, .output = run, .left_out = {}, .with_mtp = true}, keys_of_plugin);
}

class MtpExport : public testing::TestWithParam<std::string> {
 protected:
  // A run of two steps from the published model, with a depth that it had not.
  void train(const std::string& more = "") {
    import_test::import_into(folder_.path("base"), paths::published_model(GetParam()));
    folder_.write(
        "c.toml",
        "extends = [\"base/model.toml\"]\n[run]\nname = \"trained\"\nsteps = 2\nlog_every = 1\n[train]\nfrom = "
        "\"base\"\n[data]\nsource = \"synthetic\"\nsequence_length = 16\n[batch]\nsequences = 4\n"
        "[model]\nmtp_depth = 1\n" +
            more);
    const auto result = folder_.orthant({"launch", "c.toml"});
    ASSERT_EQ(result.code, 0) << result.error << result.output;
  }
  run_test::ProgramFolder folder_;
};

TEST_P(MtpExport, IsReadAgainAsItWas) {
  train();
  const ExportResult result =
      export_run({.run = folder_.run("trained"), .output = folder_.path("out")}, keys_of_plugin);
  EXPECT_EQ(result.model_type, GetParam());
  const auto config = nlohmann::json::parse(read_file(folder_.path("out") / "config.json"));
  EXPECT_EQ(config["num_nextn_predict_layers"], 1);
  const SafetensorsReader weights(folder_.path("out") / "model.safetensors");
  const std::string layer = "model.layers." + config["num_hidden_layers"].dump();
  const auto bytes = [&](const std::string& name) {
    const auto span = weights.bytes(weights.at(name));
    return std::vector<std::byte>(span.begin(), span.end());
  };
  EXPECT_EQ(bytes(layer + ".embed_tokens.weight"), bytes("model.embed_tokens.weight"));
  EXPECT_EQ(bytes(layer + ".shared_head.head.weight"), bytes("lm_head.weight"));
  for (const char* name :
       {".enorm.weight", ".hnorm.weight", ".eh_proj.weight", ".shared_head.norm.weight", ".input_layernorm.weight",
        ".mlp.experts.0.gate_proj.weight", ".mlp.gate.e_score_correction_bias"}) {
    EXPECT_NO_THROW(bytes(layer + name)) << name;
  }

  const ImportResult again = import_with_mtp(folder_.path("again"), folder_.path("out"));
  EXPECT_EQ(again.parameters, result.parameters);
  const CheckpointReader before(starting_checkpoint(folder_.run("trained"))),
      after(starting_checkpoint(folder_.path("again")));
  for (const std::string& name : after.names()) {
    const Shape shape = after.info(name).shape;
    ASSERT_TRUE(before.has(name)) << name;
    std::vector<float> a(static_cast<std::size_t>(shape.elements())), b(a.size());
    const std::vector<std::int64_t> zero(static_cast<std::size_t>(shape.rank()), 0);
    std::vector<std::int64_t> size;
    for (int i = 0; i < shape.rank(); ++i) {
      size.push_back(shape[i]);
    }
    before.read(name, zero, size, a.data());
    after.read(name, zero, size, b.data());
    EXPECT_EQ(a, b) << name;
  }
  EXPECT_TRUE(after.has("mtp.0.eh_proj.weight"));

  // As published models are read without --mtp.
  EXPECT_THAT(test::error_of([&] { import_test::import_into(folder_.path("plain"), folder_.path("out")); }),
              HasSubstr(layer + ".eh_proj.weight"));
  import_test::import_into(folder_.path("plain"), folder_.path("out"), {layer + ".*"});
  EXPECT_FALSE(CheckpointReader(starting_checkpoint(folder_.path("plain"))).has("mtp.0.eh_proj.weight"));
}

INSTANTIATE_TEST_SUITE_P(Families, MtpExport, testing::Values("deepseek_v3", "glm4_moe"),
                         [](const auto& family) { return family.param; });

TEST(Mtp, OfAFamilyThatHasNoneIsLeftOut) {
  run_test::ProgramFolder folder;
  folder.write("c.toml",
               "[run]\nname = \"trained\"\nsteps = 2\nlog_every = 1\n[data]\nsource = \"synthetic\"\nsequence_length = "
               "16\n[batch]\nsequences = 4\n[model]\nlayers = 1\nd_model = 16\nheads = 2\nactivation = \"swiglu\"\n"
               "mtp_depth = 1\n[moe]\nexperts = 4\ntop_k = 2\n");
  const auto trained = folder.orthant({"launch", "c.toml"});
  ASSERT_EQ(trained.code, 0) << trained.error << trained.output;
  EXPECT_THAT(trained.output, HasSubstr("mtp "));
  const ExportResult result = export_run({.run = folder.run("trained"), .output = folder.path("out")}, keys_of_plugin);
  EXPECT_EQ(result.model_type, "mixtral");
  EXPECT_THAT(result.notes, testing::Contains(HasSubstr("model.mtp_depth, which only training needs, are left out")));
  const SafetensorsReader weights(folder.path("out") / "model.safetensors");
  for (const FileTensor& tensor : weights.tensors()) {
    EXPECT_THAT(tensor.name, testing::Not(HasSubstr("mtp")));
  }
  // The model answers without its block, and has the same loss as the exported one.
  const auto answer = folder.orthant({"generate", "runs/trained", "--prompt", "a", "--max-tokens", "3"});
  EXPECT_EQ(answer.code, 0) << answer.error;
}

TEST(Mtp, WhatCannotBeReadIsRefused) {
  run_test::ProgramFolder folder;
  EXPECT_THAT(test::error_of([&] { import_with_mtp(folder.path("a"), paths::published_model("mixtral")); }),
              HasSubstr("--mtp: models of the family \"mixtral\" have no blocks"));
  EXPECT_THAT(test::error_of([&] { import_with_mtp(folder.path("b"), paths::published_model("deepseek_v3")); }),
              HasSubstr("not there, and the model needs them: model.layers.2."));
}

}  // namespace
}  // namespace orthant::mtp_pretrained_test
