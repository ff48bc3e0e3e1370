// Adapters on an import, as a user trains them: any layout, a resume, the merged export, the adapters alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "apps/pretrained/export.h"
#include "apps/pretrained/import.h"
#include "apps/pretrained/opened_model.h"
#include "apps/pretrained/sample_logits.h"
#include "core/arch/trained.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/safetensors.h"
#include "core/session/session.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::lora_test {
namespace {

namespace fs = std::filesystem;
using launch_test::read_file;
using testing::AllOf;
using testing::HasSubstr;

const char* const usual_targets = R"(["*_proj.weight", "*.experts.*", "lm_head.weight"])";

void prepare(const run_test::ProgramFolder& folder, const std::string& model, const std::string& targets) {
  import_model({.source = paths::published_model(model), .output = folder.path("base"), .left_out = {}},
               keys_of_plugin);
  folder.write("c.toml",
               "extends = [\"base/model.toml\"]\n[run]\nsteps = 4\nlog_every = 1\n[train]\nfrom = \"base\"\n"
               "[data]\nsource = \"synthetic\"\nsequence_length = 16\n[batch]\nsequences = 8\nmicro_batch = 2\n"
               "[moe]\naux_loss = 0.01\n[optimizer]\nlr = 0.01\nschedule = \"constant\"\n[lora]\nrank = 4\n"
               "init_std = 0.2\ntargets = " +
                   targets + "\n");
}

run_test::Result launch(const run_test::ProgramFolder& folder, std::vector<std::string> settings,
                        const std::vector<std::string>& words = {"launch", "c.toml"}) {
  const auto result = folder.orthant(run_test::with_set(words, std::move(settings)));
  EXPECT_EQ(result.code, 0) << result.error << result.output;
  return result;
}

const std::vector<std::string> all_axes = {"plugins.data.size=2", "plugins.data.zero=3", "plugins.expert.size=2",
                                           "plugins.pipeline.size=2", "plugins.tensor.size=2"};

std::vector<double> logits_of(const fs::path& model) {
  const OpenedModel opened(model, "compare", {}, keys_of_plugin, kinds_of_plugin);
  return sample_logits(opened.config(), opened.reader(), {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3}, 2);
}

double difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0, difference = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    largest = std::max(largest, std::abs(b[i]));
    difference = std::max(difference, std::abs(a.at(i) - b[i]));
  }
  return difference / largest;
}

class Adapted : public testing::TestWithParam<std::string> {};

TEST_P(Adapted, TrainsAlikeInEveryLayoutAndIsExportedMerged) {
  const run_test::ProgramFolder folder;
  prepare(folder, GetParam(), usual_targets);
  const auto one = launch(folder, {"run.name=\"one\""});
  EXPECT_THAT(one.output, AllOf(HasSubstr("trains "), HasSubstr("adapters of rank 4, scale 4, on "),
                                HasSubstr(".self_attn.o_proj.weight")));
  // Half of it under four axes, the other half on one rank.
  std::vector<std::string> half = all_axes;
  half.insert(half.end(), {"run.name=\"half\"", "run.steps=2"});
  launch(folder, half);
  launch(folder, {"run.name=\"half\""}, {"launch", "c.toml", "--resume", "auto"});
  const std::vector<double> whole = folder.losses("one"), halves = folder.losses("half");
  ASSERT_EQ(whole.size(), 4u);
  ASSERT_EQ(halves.size(), 4u);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    EXPECT_NEAR(whole[i], halves[i], 2e-5) << i;
  }
  // The base is what it was.
  const CheckpointReader base(folder.checkpoint(0, "../base")), trained(folder.checkpoint(4, "half"));
  const auto read = [](const CheckpointReader& reader, const std::string& name) {
    const Shape shape = reader.info(name).shape;
    std::vector<std::int64_t> sizes;
    for (int i = 0; i < shape.rank(); ++i) {
      sizes.push_back(shape[i]);
    }
    std::vector<float> values(static_cast<std::size_t>(shape.elements()));
    reader.read(name, std::vector<std::int64_t>(sizes.size(), 0), sizes, values.data());
    return values;
  };
  std::size_t adapters = 0;
  for (const std::string& name : trained.names()) {
    if (is_adapter(name)) {
      ++adapters;
    } else if (!name.starts_with("optimizer/") && base.has(name) && !name.starts_with("gate/")) {
      EXPECT_EQ(read(base, name), read(trained, name)) << name;
    } else {
      EXPECT_TRUE(is_adapter(name) || name.starts_with("gate/") || base.has(name)) << name << ": state of a frozen one";
    }
  }
  EXPECT_GT(adapters, 10u);
  export_run({.run = folder.run("half"), .output = folder.path("merged")}, keys_of_plugin);
  const std::vector<double> logits = logits_of(folder.run("half"));
  EXPECT_LT(difference(logits_of(folder.path("merged")), logits), 1e-5);
  EXPECT_GT(difference(logits_of(paths::published_model(GetParam())), logits), 1e-3) << "the adapters did nothing";
}

INSTANTIATE_TEST_SUITE_P(Families, Adapted, testing::Values("mixtral", "qwen3_moe_packed", "deepseek_v3", "gpt_oss"),
                         [](const auto& family) { return family.param; });

TEST(AdapterExport, HasPeftsNamesAndRefusesWhatPeftCannotSay) {
  const run_test::ProgramFolder folder;
  prepare(folder, "mixtral", usual_targets);
  launch(folder, {"run.name=\"r\"", "run.steps=1"});
  export_run({.run = folder.run("r"), .output = folder.path("adapter"), .adapter = true}, keys_of_plugin);
  const SafetensorsReader file(folder.path("adapter") / "adapter_model.safetensors");
  const std::string layer = "base_model.model.model.layers.1.";
  EXPECT_EQ(file.at(layer + "self_attn.q_proj.lora_A.weight").sizes, (std::vector<std::int64_t>{4, 24}));
  EXPECT_EQ(file.at(layer + "block_sparse_moe.experts.2.w1.lora_B.weight").sizes, (std::vector<std::int64_t>{10, 4}));
  EXPECT_THAT(read_file(folder.path("adapter") / "adapter_config.json"),
              AllOf(HasSubstr("\"peft_type\": \"LORA\""), HasSubstr("\"r\": 4"),
                    HasSubstr("\"model.layers.0.block_sparse_moe.experts.0.w2\"")));
  EXPECT_FALSE(fs::exists(folder.path("adapter") / "model.safetensors"));

  const auto refused = [&](const std::vector<std::string>& settings) {
    std::vector<std::string> all = settings;
    all.insert(all.end(), {"run.name=\"bad\"", "run.steps=1"});
    launch(folder, all);
    const auto result = folder.orthant({"export", "runs/bad", "-o", "bad", "--adapter"});
    EXPECT_NE(result.code, 0) << result.output;
    EXPECT_FALSE(fs::exists(folder.path("bad")));
    return result.error;
  };
  EXPECT_THAT(refused({"lora.rank=0", "lora.targets=[]"}), HasSubstr("the run has no adapters"));
  EXPECT_THAT(refused({R"(lora.train_also=["model.norm.weight"])"}),
              HasSubstr("'model.norm.weight' was trained itself, and an adapter's file has no place for it"));
  EXPECT_THAT(refused({R"(lora.targets=["*.gate.weight"])"}),
              AllOf(HasSubstr(".block_sparse_moe.gate.weight' has an adapter"), HasSubstr("no linear modules")));
  const run_test::ProgramFolder packed;
  prepare(packed, "qwen3_moe_packed", R"(["*.experts.*"])");
  launch(packed, {"run.name=\"r\"", "run.steps=1"});
  const auto result = packed.orthant({"export", "runs/r", "-o", "bad", "--adapter"});
  EXPECT_NE(result.code, 0) << result.output;
  EXPECT_THAT(result.error,
              AllOf(HasSubstr(".experts.0.w1.weight' has an adapter"), HasSubstr("packed into one tensor")));
  const run_test::ProgramFolder unmapped;
  prepare(unmapped, "qwen2_moe", usual_targets);
  launch(unmapped, {"run.name=\"r\"", "run.steps=1"});
  EXPECT_THAT(unmapped.orthant({"export", "runs/r", "-o", "bad", "--adapter"}).error,
              HasSubstr("peft does not apply those of qwen2_moe's experts"));
  const run_test::ProgramFolder beside;
  prepare(beside, "glm4_moe", R"(["*.self_attn.*_proj.weight", "*.experts.*"])");
  const auto beside_experts = [&](const std::string& target) {
    fs::remove_all(beside.run("r"));
    launch(beside, {"run.name=\"r\"", "run.steps=1", "lora.targets=[\"" + target + "\"]"});
    return beside.orthant({"export", "runs/r", "-o", "bad", "--adapter"}).error;
  };
  EXPECT_THAT(beside_experts("*.shared_experts.*"), HasSubstr("peft takes it for one of glm4_moe's routed experts"));
  EXPECT_THAT(beside_experts("model.layers.0.mlp.*"), HasSubstr("peft takes it for one of glm4_moe's routed experts"));
  EXPECT_EQ(beside_experts("*.block_sparse_moe.experts.*"), "");
  // A model and its adapter in one folder would be added to each other.
  const auto both = folder.orthant({"export", "runs/r", "-o", "adapter", "--force"});
  EXPECT_EQ(both.code, 78);
  EXPECT_THAT(both.error, HasSubstr("holds adapter_config.json"));
  EXPECT_FALSE(fs::exists(folder.path("adapter") / "model.safetensors"));
}

// Opt-in: ORTHANT_PYTHON with torch, transformers and peft.
TEST(AdapterExport, GivesTheMergedLogitsInPeft) {
  if (paths::python().empty()) {
    GTEST_SKIP() << "no ORTHANT_PYTHON and no .venv/bin/python with torch, transformers and peft";
  }
  for (const char* model : {"mixtral", "qwen3", "glm4_moe"}) {
    const run_test::ProgramFolder folder;
    prepare(folder, model,
            model == std::string("qwen3") ? R"(["*_proj.weight"])"
                                          : R"(["*.self_attn.*_proj.weight", "*.block_sparse_moe.experts.*"])");
    launch(folder, {"run.name=\"r\""});
    export_run({.run = folder.run("r"), .output = folder.path("merged"), .dtype = DType::f32}, keys_of_plugin);
    export_run({.run = folder.run("r"), .output = folder.path("adapter"), .adapter = true}, keys_of_plugin);
    const auto result = folder.command({paths::python(), paths::source("tests/reference/check_adapter.py"),
                                        paths::published_model(model).string(), folder.path("adapter").string(),
                                        folder.path("merged").string()});
    if (result.code == 3) {
      GTEST_SKIP() << paths::python() << " lacks torch, transformers or peft";
    }
    ASSERT_EQ(result.code, 0) << model << ": " << result.error;
    double with = 1, without = 0;
    ASSERT_EQ(std::sscanf(result.output.c_str(), "%lf %lf", &with, &without), 2) << result.output;
    EXPECT_LT(with, 1e-5) << model;
    EXPECT_GT(without, 1e-3) << model;
  }
}

TEST(Adapters, OfAnotherRunAreRefused) {
  const run_test::ProgramFolder folder;
  prepare(folder, "mixtral", usual_targets);
  launch(folder, {"run.name=\"r\"", "run.steps=1"});
  const auto refused = [&](const std::vector<std::string>& words, const std::vector<std::string>& settings) {
    const auto result = folder.orthant(run_test::with_set(words, settings));
    EXPECT_NE(result.code, 0) << result.output;
    return result.error + result.output;
  };
  EXPECT_THAT(refused({"train", "c.toml"}, {"run.name=\"s\"", "train.from=\"runs/r\"", "lora.rank=2"}),
              HasSubstr("lora_A.weight' is [4, 24] there and [2, 24] here"));
  EXPECT_THAT(
      refused({"train", "c.toml"}, {"run.name=\"s\"", "train.from=\"runs/r\"", "lora.rank=0", "lora.targets=[]"}),
      HasSubstr("has no place here: it is an adapter's"));
  EXPECT_THAT(
      refused({"train", "c.toml", "--resume", "auto"}, {"run.name=\"r\"", "lora.targets=[\"*.q_proj.weight\"]"}),
      HasSubstr("go on with the settings that wrote it"));
  EXPECT_THAT(refused({"train", "c.toml"}, {"run.name=\"s\"", "train.from=\"runs/r\"", "lora.alpha=5"}),
              HasSubstr("its adapters count lora.alpha / rank ="));
  EXPECT_THAT(refused({"upcycle", "runs/r", "-o", "u", "--experts", "4"}, {}), HasSubstr("experts already"));
  const run_test::ProgramFolder dense;
  prepare(dense, "qwen3", R"(["*_proj.weight"])");
  launch(dense, {"run.name=\"r\"", "run.steps=1"});
  EXPECT_THAT(dense.orthant({"upcycle", "runs/r", "-o", "u", "--experts", "4"}).error, HasSubstr("has adapters"));
}

}  // namespace
}  // namespace orthant::lora_test
