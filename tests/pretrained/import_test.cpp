// Published models in and out: tiny ones that transformers has made (make_models.py), their logits and their bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/pretrained/export.h"
#include "apps/pretrained/sample_logits.h"
#include "core/checkpoint/checkpoint.h"
#include "core/run/starting_weights.h"
#include "tests/pretrained/import_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::import_test {
namespace {

namespace fs = std::filesystem;
using launch_test::read_file;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

const std::vector<std::string> families = {
    "bailing_moe_v2",  "deepseek_v2",    "deepseek_v3",    "dots1",         "ernie4_5_moe",  "flex_olmo",
    "gemma2",          "gemma3_text",    "glm4_moe",       "glm4_moe_lite", "gpt_oss",       "granite",
    "granitemoe",      "hunyuan_v1_moe", "kimi_k2",        "llama",         "llama_dynamic", "minimax_m2",
    "mistral",         "mixtral",        "mixtral_packed", "olmo2",         "olmoe",         "phi3",
    "phi3_long",       "phimoe",         "qwen2",          "qwen2_moe",     "qwen3",         "qwen3_moe",
    "qwen3_moe_packed"};

template <class T>
std::vector<T> values(const SafetensorsReader& file, const std::string& name) {
  const std::span<const std::byte> bytes = file.bytes(file.at(name));
  std::vector<T> all(bytes.size() / sizeof(T));
  std::memcpy(all.data(), bytes.data(), bytes.size());
  return all;
}

class Published : public testing::TestWithParam<std::string> {
 protected:
  Folder folder_;
};

void expect_transformers_logits(const fs::path& run, const std::string& model) {
  import_into(run, paths::published_model(model));
  const Config config = config_of(run);
  const fs::path source = paths::published_model(model.substr(0, model.find("_packed")));
  const SafetensorsReader expected(source / "expected.safetensors");
  const std::vector<float> theirs = values<float>(expected, "logits");
  const std::vector<double> ours =
      sample_logits(config, starting_checkpoint(run), values<std::int32_t>(expected, "token"), 2);
  ASSERT_EQ(ours.size(), theirs.size());
  double difference = 0, largest = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    difference = std::max(difference, std::abs(ours[i] - theirs[i]));
    largest = std::max<double>(largest, std::abs(theirs[i]));
  }
  EXPECT_GT(largest, 1);
  EXPECT_LT(difference / largest, 1e-5);
}

TEST_P(Published, HasTransformersLogits) {
  expect_transformers_logits(folder_ / "run", GetParam());
}

TEST_P(Published, ComesOutAsItWentIn) {
  import_into(folder_ / "run", paths::published_model(GetParam()));
  const ExportResult result = export_run({.run = folder_ / "run", .output = folder_ / "out"}, keys_of_plugin);
  EXPECT_THAT(result.notes, testing::IsEmpty());
  EXPECT_EQ(read_file(folder_ / "out/config.json"), read_file(paths::published_model(GetParam()) / "config.json"));
  const SafetensorsReader source(paths::published_model(GetParam()) / "model.safetensors"),
      out(folder_ / "out/model.safetensors");
  ASSERT_EQ(source.tensors().size(), out.tensors().size());
  for (const FileTensor& tensor : source.tensors()) {
    const FileTensor& other = out.at(tensor.name);
    EXPECT_EQ(tensor.dtype, other.dtype) << tensor.name;
    EXPECT_EQ(tensor.sizes, other.sizes) << tensor.name;
    const auto a = source.bytes(tensor), b = out.bytes(other);
    EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end())) << tensor.name;
  }
}

TEST_P(Published, IsExportedByAnotherRunAsTheSameFamily) {
  // Without its origin, the family follows from the settings; what is written then reads back as the same model.
  import_into(folder_ / "run", paths::published_model(GetParam()));
  fs::remove_all(folder_ / "run/pretrained");
  const ExportResult result = export_run({.run = folder_ / "run", .output = folder_ / "out"}, keys_of_plugin);
  EXPECT_NE(result.model_type, "orthant") << testing::PrintToString(result.notes);
  // Key by key what transformers has written, where it wrote the key too.
  const json source = json::parse(read_file(paths::published_model(GetParam()) / "config.json"));
  const json written = json::parse(read_file(folder_ / "out/config.json"));
  for (const auto& [key, value] : written.items()) {
    const bool of_training =
        key == "router_aux_loss_coef" || key == "max_position_embeddings" || key.ends_with("_token_id");
    // Null, which the classes take for d_model / heads, and for false.
    const bool by_class = key == "head_dim" || key == "use_bidirectional_attention";
    const bool said = source.contains(key) && (!by_class || !source[key].is_null());
    if (!of_training && said && result.model_type == source["model_type"].get<std::string>()) {
      EXPECT_EQ(value, source[key]) << key;
    }
  }
  import_into(folder_ / "again", folder_ / "out");
  const CheckpointReader first(starting_checkpoint(folder_ / "run")), again(starting_checkpoint(folder_ / "again"));
  EXPECT_EQ(first.names(), again.names());
  const Config a = config_of(folder_ / "run"), b = config_of(folder_ / "again");
  for (const char* table : {"model", "moe"}) {
    for (const auto& [key, entry] : a.table(table).entries()) {
      const bool follows = key == "kv_heads" || key == "head_dim";
      EXPECT_TRUE(follows || entry.value == b.table(table).entries().at(key).value) << table << "." << key;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Published, testing::ValuesIn(families),
                         [](const auto& family) { return family.param; });

// Models whose tensors have types that we read and do not write.
class Converted : public Published {};

TEST_P(Converted, HasTransformersLogits) {
  expect_transformers_logits(folder_ / "run", GetParam());
}

TEST_P(Converted, ComesOutWithAllOfItsBits) {
  const fs::path published = paths::published_model(GetParam());
  const ImportResult result = import_into(folder_ / "run", published);
  const std::string type = GetParam() == "llama_f16" ? "F16" : GetParam() == "gpt_oss_mxfp4" ? "MXFP4" : "F8_E4M3";
  EXPECT_THAT(result.converted, testing::ElementsAre(type));
  const json receipt = json::parse(read_file(folder_ / "run/pretrained/receipt.json"));
  EXPECT_EQ(receipt["converted_to_f32"], json::array({type}));
  const ExportResult exported = export_run({.run = folder_ / "run", .output = folder_ / "out"}, keys_of_plugin);
  EXPECT_THAT(exported.notes, testing::ElementsAre(HasSubstr(type + " tensors are written as fp32")));
  const SafetensorsReader source(published / "model.safetensors"), expected(published / "expected.safetensors"),
      out(folder_ / "out/model.safetensors");
  int converted = 0;
  for (const FileTensor& tensor : out.tensors()) {
    const FileTensor* wanted = expected.find(tensor.name);
    const auto a = wanted != nullptr ? expected.bytes(*wanted) : source.bytes(source.at(tensor.name));
    const auto b = out.bytes(tensor);
    EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end())) << tensor.name;
    converted += wanted != nullptr ? 1 : 0;
    const std::string stored = tensor.name + (type == "MXFP4" ? "_blocks" : "");
    EXPECT_EQ(receipt["scales"].contains(stored), wanted != nullptr && type != "F16") << tensor.name;
  }
  EXPECT_GT(converted, 3);
  EXPECT_EQ(static_cast<std::size_t>(converted), expected.tensors().size() - 2);  // beside token and logits
  // What was written says nothing of the types that are gone, and is the same model.
  const json config = json::parse(read_file(folder_ / "out/config.json"));
  EXPECT_FALSE(config.contains("quantization_config"));
  EXPECT_EQ(config["torch_dtype"], "float32");
  EXPECT_FALSE(config.contains("dtype"));
  import_into(folder_ / "again", folder_ / "out");
  EXPECT_TRUE(
      run_test::differences(starting_checkpoint(folder_ / "run"), starting_checkpoint(folder_ / "again")).empty());
  const ExportResult narrow =
      export_run({.run = folder_ / "run", .output = folder_ / "narrow", .dtype = DType::bf16}, keys_of_plugin);
  EXPECT_EQ(narrow.dtypes, "bf16");
  const SafetensorsReader rounded(folder_ / "narrow/model.safetensors");
  for (const FileTensor& tensor : rounded.tensors()) {
    EXPECT_EQ(tensor.dtype, tensor.name.ends_with("e_score_correction_bias") ? DType::f32 : DType::bf16) << tensor.name;
  }
  EXPECT_THAT(narrow.notes, testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Types, Converted,
                         testing::Values("llama_f16", "deepseek_v3_fp8", "qwen3_moe_fp8", "qwen3_moe_fp8_whole",
                                         "gpt_oss_mxfp4"),
                         [](const auto& model) { return std::string(model.param); });

}  // namespace
}  // namespace orthant::import_test
