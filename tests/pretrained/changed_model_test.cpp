// Imported models whose settings were changed before the export: config.json says what they are now, and keeps what
// the published one says of its tokenizer and types.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/pretrained/export.h"
#include "apps/pretrained/import.h"
#include "apps/pretrained/receipt.h"
#include "core/checkpoint/safetensors.h"
#include "core/session/session.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::changed_model_test {
namespace {

namespace fs = std::filesystem;
using launch_test::read_file;
using nlohmann::json;

class ChangedModel : public testing::Test {
 protected:
  // A published model as a run whose [model] (or [moe]) has other lines than those that were imported.
  void take(const std::string& family, const std::vector<std::pair<std::string, std::string>>& lines) {
    for (const char* name : {"run", "out"}) {
      fs::remove_all(folder_.path(name));
    }
    import_model({.source = paths::published_model(family), .output = folder_.path("run"), .left_out = {}},
                 keys_of_plugin);
    const fs::path resolved = folder_.path("run") / "config.resolved.toml";
    std::string text = read_file(resolved);
    for (const auto& [from, to] : lines) {
      const std::size_t at = text.find("\n" + from + " ");
      ASSERT_NE(at, std::string::npos) << from;
      text.replace(at + 1, from.size(), to);
    }
    std::ofstream(resolved) << text;
  }
  json exported(std::optional<DType> dtype = {}) {
    result_ = export_run({.run = folder_.path("run"), .output = folder_.path("out"), .dtype = dtype}, keys_of_plugin);
    return json::parse(read_file(folder_.path("out") / "config.json"));
  }

  run_test::ProgramFolder folder_;
  ExportResult result_;
};

TEST_F(ChangedModel, WhatThePublishedOneDoesNotStateIsSaidToo) {
  take("mistral", {{"sliding_window = 0", "sliding_window = 8"}});
  EXPECT_EQ(exported()["sliding_window"], 8);
  take("qwen3", {{"rope_scaling = \"none\"", "rope_scaling = \"yarn\""},
                 {"rope_factor = 1.0", "rope_factor = 4.0"},
                 {"rope_original_positions = 0", "rope_original_positions = 16"}});
  const json scaling = exported()["rope_scaling"];
  EXPECT_EQ(scaling["rope_type"], "yarn");
  EXPECT_EQ(scaling["factor"], 4);
  EXPECT_EQ(scaling["original_max_position_embeddings"], 16);
}

TEST_F(ChangedModel, WhatOnlyTrainingReadsChangesNothing) {
  take("mixtral", {{"aux_loss =", "aux_loss = 0.5 #"}, {"dropout =", "dropout = 0.1 #"}});
  EXPECT_EQ(exported(), json::parse(read_file(paths::published_model("mixtral") / "config.json")));
}

TEST_F(ChangedModel, TypesAndTokenIdsStay) {
  // All weights of this one are BF16.
  take("qwen3", {{"rope_theta =", "rope_theta = 2.0 #"}});
  const fs::path config = folder_.path("run") / pretrained_folder / "config.json";
  json said = json::parse(read_file(config));
  said["bos_token_id"] = 5;
  said["eos_token_id"] = 7;
  std::ofstream(config) << said.dump();
  json made = exported();
  EXPECT_EQ(result_.model_type, "qwen3");
  EXPECT_EQ(result_.dtypes, "bf16");
  EXPECT_EQ(made["rope_theta"], 2);
  EXPECT_EQ(made.value("dtype", made.value("torch_dtype", "")), "bfloat16");
  EXPECT_EQ(made["bos_token_id"], 5);
  EXPECT_EQ(made["eos_token_id"], 7);
  EXPECT_EQ(made["max_position_embeddings"], said["max_position_embeddings"]);
  fs::remove_all(folder_.path("out"));
  made = exported(DType::f32);
  EXPECT_EQ(made["torch_dtype"], "float32");
  EXPECT_FALSE(made.contains("dtype"));
}

TEST_F(ChangedModel, WithoutATwinTheWeightsHaveOneType) {
  take("qwen3", {{"sliding_window = 0", "sliding_window = 8"}});  // Qwen3's class cannot say it
  const json made = exported();
  EXPECT_EQ(result_.model_type, "orthant");
  EXPECT_EQ(result_.dtypes, "bf16");
  EXPECT_EQ(made["torch_dtype"], "bfloat16");
  // Where the origin's tensors have two types, all are written as f32.
  fs::remove_all(folder_.path("out"));
  const fs::path receipt = folder_.path("run") / pretrained_folder / "receipt.json";
  json told = json::parse(read_file(receipt));
  told["dtypes"]["model.norm.weight"] = "F32";
  std::ofstream(receipt) << told.dump();
  EXPECT_EQ(exported()["torch_dtype"], "float32");
  EXPECT_EQ(result_.dtypes, "fp32");
}

}  // namespace
}  // namespace orthant::changed_model_test
