// Published encoder-decoders in and out: tiny ones that transformers has made (make_models.py), their logits and bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/pretrained/average.h"
#include "apps/pretrained/export.h"
#include "apps/pretrained/import.h"
#include "apps/pretrained/sample_logits.h"
#include "apps/pretrained/upcycle.h"
#include "core/checkpoint/safetensors.h"
#include "core/run/starting_weights.h"
#include "tests/pretrained/import_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace orthant::test::encoder_decoder_families_test {
namespace {

namespace fs = std::filesystem;
using import_test::Folder;
using launch_test::read_file;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

fs::path model(const std::string& name) {
  return paths::source("tests/encoder_decoder/models/" + name);
}

ImportResult import_into(const fs::path& run, const fs::path& source) {
  return import_model({.source = source, .output = run, .left_out = {}}, keys_of_plugin, kinds_of_plugin);
}
Config config_of(const fs::path& run) {
  return load_config((run / "config.resolved.toml").string(), {}, keys_of_plugin, kinds_of_plugin);
}
ExportResult export_of(const fs::path& run, const fs::path& out) {
  return export_run({.run = run, .output = out}, keys_of_plugin, kinds_of_plugin);
}

template <class T>
std::vector<T> values(const SafetensorsReader& file, const std::string& name) {
  const std::span<const std::byte> bytes = file.bytes(file.at(name));
  std::vector<T> all(bytes.size() / sizeof(T));
  std::memcpy(all.data(), bytes.data(), bytes.size());
  return all;
}

void expect_same_tensors(const fs::path& a, const fs::path& b) {
  const SafetensorsReader one(a), other(b);
  ASSERT_EQ(one.tensors().size(), other.tensors().size());
  for (const FileTensor& tensor : one.tensors()) {
    EXPECT_EQ(tensor.sizes, other.at(tensor.name).sizes) << tensor.name;
    const auto x = one.bytes(tensor), y = other.bytes(other.at(tensor.name));
    EXPECT_TRUE(std::equal(x.begin(), x.end(), y.begin(), y.end())) << tensor.name;
  }
}

class PublishedPairs : public testing::TestWithParam<std::string> {
 protected:
  Folder folder_;
};

TEST_P(PublishedPairs, HaveTransformersLogits) {
  import_into(folder_ / "run", model(GetParam()));
  const SafetensorsReader expected(model(GetParam()) / "expected.safetensors");
  const std::vector<float> theirs = values<float>(expected, "logits");
  const std::vector<double> ours =
      sample_logits(config_of(folder_ / "run"), starting_checkpoint(folder_ / "run"),
                    values<std::int32_t>(expected, "token"), 2, values<std::int32_t>(expected, "source"));
  ASSERT_EQ(ours.size(), theirs.size());
  double difference = 0, largest = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    difference = std::max(difference, std::abs(ours[i] - static_cast<double>(theirs[i])));
    largest = std::max(largest, std::abs(static_cast<double>(theirs[i])));
  }
  EXPECT_GT(largest, 0.5);
  EXPECT_LT(difference / largest, 1e-5);
}

TEST_P(PublishedPairs, ComeOutAsTheyWentIn) {
  import_into(folder_ / "run", model(GetParam()));
  const ExportResult result = export_of(folder_ / "run", folder_ / "out");
  EXPECT_THAT(result.notes, testing::IsEmpty());
  EXPECT_EQ(read_file(folder_ / "out/config.json"), read_file(model(GetParam()) / "config.json"));
  expect_same_tensors(model(GetParam()) / "model.safetensors", folder_ / "out/model.safetensors");
}

// Without its origin the family follows from the settings; what is written reads back as the same model.
TEST_P(PublishedPairs, AreSaidByAnotherRunToo) {
  import_into(folder_ / "run", model(GetParam()));
  fs::remove_all(folder_ / "run/pretrained");
  const ExportResult result = export_of(folder_ / "run", folder_ / "out");
  const std::string expected = GetParam() == "t5_gated" || GetParam() == "mt5" ? "t5" : GetParam();
  EXPECT_EQ(result.model_type, expected) << testing::PrintToString(result.notes);
  const json source = json::parse(read_file(model(GetParam()) / "config.json"));
  const json written = json::parse(read_file(folder_ / "out/config.json"));
  for (const auto& [key, value] : written.items()) {
    const bool other =
        key == "model_type" || key == "architectures" || key == "tie_word_embeddings" || key == "expert_capacity";
    if (source.contains(key) && !other) {
      EXPECT_EQ(value, source[key]) << key;
    }
  }
  import_into(folder_ / "again", folder_ / "out");
  const Config a = config_of(folder_ / "run"), b = config_of(folder_ / "again");
  for (const char* table : {"model", "moe"}) {
    for (const auto& [key, entry] : a.table(table).entries()) {
      EXPECT_TRUE(entry.value == b.table(table).entries().at(key).value) << table << "." << key;
    }
  }
  expect_same_tensors(folder_ / "out/model.safetensors", model(GetParam()) / "model.safetensors");
}

INSTANTIATE_TEST_SUITE_P(Families, PublishedPairs, testing::Values("t5", "t5_gated", "mt5", "switch_transformers"),
                         [](const auto& family) { return family.param; });

// Copies a model with some keys of its config.json changed.
fs::path changed(const Folder& folder, const std::string& name, const json& keys) {
  fs::copy(model(name), folder / "changed");
  json config = json::parse(read_file(folder / "changed/config.json"));
  config.update(keys);
  std::ofstream(folder / "changed/config.json") << config.dump();
  return folder / "changed";
}

std::string refusal_of(const std::string& name, const json& keys) {
  const Folder folder;
  return error_of<ConfigError>([&] { import_into(folder / "run", changed(folder, name, keys)); });
}

TEST(PublishedPair, IsRefusedWhereItIsAnotherModel) {
  EXPECT_THAT(refusal_of("t5", {{"feed_forward_proj", "gated-tanh"}}),
              HasSubstr("feed_forward_proj = \"gated-tanh\": only \"gated-gelu\""));
  EXPECT_THAT(refusal_of("t5", {{"new_bias", true}}), HasSubstr("new_bias = true: this key is not known"));
  EXPECT_THAT(refusal_of("switch_transformers", {{"num_layers", 9}}),
              AllOf(HasSubstr("num_sparse_encoder_layers"), HasSubstr("every n-th")));
  EXPECT_THAT(refusal_of("switch_transformers", {{"router_dtype", "bfloat16"}}), HasSubstr("router_dtype"));
  EXPECT_THAT(refusal_of("t5", {{"d_ff", 20}}), HasSubstr("config.json makes it"));
  EXPECT_THAT(refusal_of("t5", {{"model_type", "pegasus"}}),
              AllOf(HasSubstr("not read here"), HasSubstr("switch_transformers")));
}

TEST(PublishedPair, MayHaveTheTableAgain) {
  const Folder folder;
  fs::copy(model("t5"), folder / "old");
  const SafetensorsReader source(model("t5") / "model.safetensors");
  std::vector<FileTensor> tensors = source.tensors();
  FileTensor again = source.at("shared.weight");
  again.name = "encoder.embed_tokens.weight";
  tensors.push_back(again);
  {
    const Disk disk;
    DiskFile file(disk, folder / "old/model.safetensors");
    SafetensorsWriter writer(file, tensors, {{"format", "pt"}});
    for (const FileTensor& tensor : tensors) {
      writer.write(source.bytes(source.at(tensor.name == again.name ? "shared.weight" : tensor.name)));
    }
    writer.finish();
    file.sync_and_close();
  }
  import_into(folder / "run", folder / "old");
  const json receipt = json::parse(read_file(folder / "run/pretrained/receipt.json"));
  EXPECT_EQ(receipt["repeated"], json::array({"encoder.embed_tokens.weight"}));
}

TEST(PublishedPair, BecomesAMixtureThatComputesTheSame) {
  const Folder folder;
  const UpcycleResult result = upcycle({.source = model("t5_gated"), .output = folder / "mixture", .experts = 4},
                                       keys_of_plugin, kinds_of_plugin);
  EXPECT_EQ(result.blocks, 5);
  ASSERT_TRUE(result.largest_difference.has_value());
  EXPECT_LT(*result.largest_difference, 1e-5);
  EXPECT_EQ(config_of(folder / "mixture").settings.model.kind, "t5");
}

TEST(PublishedPair, IsAveragedWithAnother) {
  const Folder folder;
  import_into(folder / "a", model("t5"));
  import_into(folder / "b", model("t5"));
  const AverageResult result = average_checkpoints(
      {.sources = {starting_checkpoint(folder / "a"), starting_checkpoint(folder / "b")}, .output = folder / "mean"},
      keys_of_plugin, kinds_of_plugin);
  EXPECT_GT(result.parameters, 0);
  export_of(folder / "mean", folder / "out");
  expect_same_tensors(folder / "out/model.safetensors", model("t5") / "model.safetensors");
}

}  // namespace
}  // namespace orthant::test::encoder_decoder_families_test
