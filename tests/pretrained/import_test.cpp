// Published models in and out: tiny ones that transformers has made (make_models.py), their logits, their bytes, and
// what a careless converter would let pass.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/checkpoint/checkpoint.h"
#include "core/pretrained/export.h"
#include "core/pretrained/import.h"
#include "core/pretrained/sample_logits.h"
#include "core/run/starting_weights.h"
#include "core/session/session.h"
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

const std::vector<std::string> families = {"deepseek_v2", "deepseek_v3",    "gpt_oss",         "llama", "mistral",
                                           "mixtral",     "mixtral_packed", "olmoe",           "qwen2", "qwen2_moe",
                                           "qwen3",       "qwen3_moe",      "qwen3_moe_packed"};

// Gone with the test.
class Folder {
 public:
  fs::path operator/(const std::string& name) const { return folder_.path() / name; }

 private:
  launch_test::TemporaryFolder folder_;
};

ImportResult import_into(const fs::path& run, const fs::path& source, std::vector<std::string> left_out = {}) {
  return import_model({.source = source, .output = run, .left_out = std::move(left_out)}, keys_of_plugin);
}

template <class T>
std::vector<T> values(const SafetensorsReader& file, const std::string& name) {
  const std::span<const std::byte> bytes = file.bytes(file.at(name));
  std::vector<T> all(bytes.size() / sizeof(T));
  std::memcpy(all.data(), bytes.data(), bytes.size());
  return all;
}

Config config_of(const fs::path& run) {
  return load_config((run / "config.resolved.toml").string(), {}, keys_of_plugin);
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
    const bool said = source.contains(key) && (key != "head_dim" || !source[key].is_null());  // null: d_model / heads
    if (!of_training && said && result.model_type == source["model_type"]) {
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
  EXPECT_THAT(narrow.notes, testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Types, Converted, testing::Values("llama_f16", "deepseek_v3_fp8", "gpt_oss_mxfp4"),
                         [](const auto& model) { return std::string(model.param); });

// A copy of a published model whose parts a test can spoil.
class Spoilt : public testing::Test {
 protected:
  void take(const std::string& name) {
    fs::create_directories(folder_ / "source");
    for (const char* file : {"config.json", "model.safetensors"}) {
      fs::copy_file(paths::published_model(name) / file, folder_ / "source" / file,
                    fs::copy_options::overwrite_existing);
    }
  }
  void change_config(const std::function<void(json&)>& change) {
    const fs::path path = folder_ / "source" / "config.json";
    json config = json::parse(read_file(path));
    change(config);
    std::ofstream(path) << config.dump();
  }
  // Writes the tensors again, those that `keep` renames to "" left out.
  void rewrite(const std::function<std::string(const FileTensor&)>& rename,
               const std::string& file = "model.safetensors", const std::function<void(FileTensor&)>& reshape = {}) {
    const SafetensorsReader source(folder_ / "source/model.safetensors");
    std::vector<FileTensor> tensors;
    std::vector<std::span<const std::byte>> bytes;
    for (const FileTensor& tensor : source.tensors()) {
      FileTensor named = tensor;
      named.name = rename(tensor);
      if (reshape) {
        reshape(named);
      }
      if (!named.name.empty()) {
        tensors.push_back(named);
        bytes.push_back(source.bytes(tensor));
      }
    }
    write_safetensors(folder_ / "new", tensors, bytes);
    fs::rename(folder_ / "new", folder_ / "source" / file);
  }
  std::string refusal(std::vector<std::string> left_out = {}) {
    const std::string said = test::error_of([&] { import_into(folder_ / "run", folder_ / "source", left_out); });
    EXPECT_FALSE(fs::exists(folder_ / "run")) << "something was left";
    return said;
  }

  Folder folder_;
};

std::string same_name(const FileTensor& t) {
  return t.name;
}

TEST_F(Spoilt, ExpertsThatAreAllDroppedAreMissed) {
  take("mixtral");
  rewrite([](const FileTensor& t) { return t.name.find(".experts.") == std::string::npos ? t.name : ""; });
  EXPECT_THAT(refusal(), AllOf(HasSubstr("the model needs them"), HasSubstr("experts.0.w1.weight")));
}

TEST_F(Spoilt, OneMatrixOfOneExpertIsMissed) {
  take("qwen3_moe");
  const std::string gone = "model.layers.1.mlp.experts.4.up_proj.weight";
  rewrite([&](const FileTensor& t) { return t.name == gone ? "" : t.name; });
  EXPECT_THAT(refusal(), AllOf(HasSubstr("the model needs it"), HasSubstr(gone)));
}

TEST_F(Spoilt, PackedExpertsUnderAnotherNameAreNotPassedOver) {
  take("mixtral_packed");
  rewrite([](const FileTensor& t) {
    const std::size_t at = t.name.find("gate_up_proj");
    return at == std::string::npos ? t.name : t.name.substr(0, at) + "w13";
  });
  EXPECT_THAT(refusal(), AllOf(HasSubstr("has no place for"), HasSubstr("mlp.experts.w13"), HasSubstr("experts.0.w1")));
}

TEST_F(Spoilt, ATransposedMatrixIsRefused) {
  take("mixtral");
  const std::string turned = "model.layers.0.block_sparse_moe.experts.1.w2.weight";
  rewrite(same_name, "model.safetensors", [&](FileTensor& t) {
    if (t.name == turned) {
      std::swap(t.sizes[0], t.sizes[1]);
    }
  });
  EXPECT_THAT(refusal(), HasSubstr(turned + " is [10, 24], config.json makes it [24, 10]"));
}

TEST_F(Spoilt, MoreExpertsThanTheConfigurationSaysAreRefused) {
  take("qwen3_moe");
  change_config([](json& config) {
    config.erase("num_local_experts");
    config["num_experts"] = 5;
  });
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("mlp.gate.weight is [6, 24], config.json makes it [5, 24]"), HasSubstr("experts.5.")));
}

TEST_F(Spoilt, WeightsThatAreNotFiniteAreRefused) {
  take("llama");
  const fs::path path = folder_ / "source/model.safetensors";
  std::string bytes = read_file(path);
  const float nan = std::nanf("");
  std::memcpy(bytes.data() + bytes.size() - sizeof nan, &nan, sizeof nan);
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_THAT(refusal(), HasSubstr("holds nan at element"));
}

TEST_F(Spoilt, ATensorOfTwoFilesAndAFileThatIsMissingAreRefused) {
  take("mistral");
  rewrite(same_name, "b.safetensors");
  fs::rename(folder_ / "source/model.safetensors", folder_ / "source/a.safetensors");
  const auto index = [&](const json& map) {
    std::ofstream(folder_ / "source/model.safetensors.index.json") << json{{"weight_map", map}}.dump();
  };
  index({{"model.norm.weight", "a.safetensors"}, {"model.embed_tokens.weight", "b.safetensors"}});
  EXPECT_THAT(refusal(), HasSubstr("is in '"));
  index({{"model.norm.weight", "a.safetensors"}, {"model.embed_tokens.weight", "c.safetensors"}});
  EXPECT_THAT(refusal(), HasSubstr("c.safetensors' is missing"));
  index({{"model.norm.weight", "a.safetensors"}});
  EXPECT_THAT(refusal(), HasSubstr("knows nothing"));
}

TEST_F(Spoilt, TwoFilesWithAnIndexAreOneModel) {
  take("mixtral");
  json map;
  const SafetensorsReader all(paths::published_model("mixtral") / "model.safetensors");
  for (const FileTensor& t : all.tensors()) {
    map[t.name] = t.name.find("layers.1.") != std::string::npos ? "b.safetensors" : "a.safetensors";
  }
  for (const std::string file : {"b.safetensors", "a.safetensors"}) {
    rewrite([&](const FileTensor& t) { return map[t.name] == file ? t.name : ""; }, file);
  }
  fs::remove(folder_ / "source/model.safetensors");
  std::ofstream(folder_ / "source/model.safetensors.index.json") << json{{"weight_map", map}}.dump();
  import_into(folder_ / "run", folder_ / "source");
  export_run({.run = folder_ / "run", .output = folder_ / "out"}, keys_of_plugin);
  const SafetensorsReader out(folder_ / "out/model.safetensors");
  for (const FileTensor& t : all.tensors()) {
    const auto a = all.bytes(t), b = out.bytes(out.at(t.name));
    EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end())) << t.name;
  }
}

TEST_F(Spoilt, WhatIsLeftOutIsNamed) {
  take("mixtral");
  rewrite(
      [](const FileTensor& t) { return t.name == "model.norm.weight" ? std::string("model.layers.7.extra") : t.name; });
  EXPECT_THAT(refusal(), HasSubstr("model.layers.7.extra"));
  EXPECT_THAT(refusal({"model.layers.7.*"}),
              AllOf(HasSubstr("needs it: model.norm.weight"), Not(HasSubstr("7.extra"))));
  EXPECT_THAT(refusal({"nothing*"}), HasSubstr("--leave-out nothing* matches no tensor"));
  take("mixtral");
  EXPECT_THAT(refusal({"model.norm.weight"}), HasSubstr("needs it: model.norm.weight"))
      << "a needed one is not left out";
}

TEST_F(Spoilt, KeysThatAreNotKnownAreRefusedByName) {
  take("mixtral");
  change_config([](json& config) {
    config["logit_softcap"] = 30.0;
    config["hidden_act"] = "gelu";
    config["rms_norm_eps"] = "small";
    config.erase("num_local_experts");
    config["rope_parameters"] = {{"rope_type", "longrope"}, {"rope_theta", 1e4}};
  });
  EXPECT_THAT(refusal(), AllOf(HasSubstr("logit_softcap = 30.0: this key is not known"),
                               HasSubstr("hidden_act = \"gelu\": only \"silu\""),
                               HasSubstr("rms_norm_eps = \"small\": a number was expected"),
                               HasSubstr("num_local_experts is missing"), HasSubstr("rope_type = \"longrope\"")));
}

TEST_F(Spoilt, RotaryPositionsThatAreNotUnderstoodAreRefused) {
  const auto refused = [&](const json& rope) {
    take("mixtral");
    change_config([&](json& config) { config["rope_parameters"] = rope; });
    return refusal();
  };
  EXPECT_THAT(refused(json::array({1})), HasSubstr("rope_parameters = [1]: an object was expected"));
  EXPECT_THAT(refused({{"rope_type", 5}}), HasSubstr("rope_type = \"5\""));
  EXPECT_THAT(refused({{"rope_type", "default"}, {"factor", 8.0}}), HasSubstr("rope_scaling.factor = 8.0: this key"));
  EXPECT_THAT(refused({{"rope_type", "linear"}, {"factor", "x"}}), HasSubstr("factor = \"x\": a number"));
  EXPECT_THAT(refused({{"rope_type", "linear"}, {"factor", 2.0}, {"truncate", true}}),
              HasSubstr("truncate = true: this key"));
  EXPECT_THAT(refused({{"partial_rotary_factor", 0.5}}), HasSubstr("only whole heads are rotated"));
  EXPECT_THAT(refused({{"rope_theta", "large"}}), HasSubstr("rope_theta = \"large\""));
}

TEST_F(Spoilt, AKeyThatIsMissingMeansWhatTransformersTakesForIt) {
  // Values: the defaults of DeepseekV3Config, DeepseekV2Config, MistralConfig and MixtralConfig.
  const auto reads = [&](const std::string& family, const std::string& key, std::pair<std::string, json> other = {}) {
    take(family);
    change_config([&](json& config) {
      config.erase(key);
      if (!other.first.empty()) {
        config[other.first] = other.second;
      }
    });
    fs::remove_all(folder_ / "run");
    import_into(folder_ / "run", folder_ / "source");
    return config_of(folder_ / "run").settings;
  };
  EXPECT_EQ(reads("deepseek_v3", "routed_scaling_factor").moe.weight_scale, 2.5);
  EXPECT_EQ(reads("deepseek_v2", "routed_scaling_factor").moe.weight_scale, 1);
  EXPECT_EQ(reads("deepseek_v3", "n_group", {"topk_group", 4}).moe.expert_groups, 8);
  EXPECT_EQ(reads("deepseek_v3", "topk_group").moe.groups_per_token, 4);
  EXPECT_EQ(reads("deepseek_v2", "n_shared_experts").moe.shared_experts, 2);
  EXPECT_EQ(reads("deepseek_v3", "n_shared_experts").moe.shared_experts, 1);
  EXPECT_EQ(reads("mistral", "sliding_window").model.sliding_window, 4096);
  EXPECT_EQ(reads("mixtral", "sliding_window").model.sliding_window, 0);
  fs::remove_all(folder_ / "run");
  // Defaults that this model cannot have.
  take("deepseek_v3");
  change_config([](json& config) { config.erase("first_k_dense_replace"); });
  EXPECT_THAT(refusal(), HasSubstr("first_dense = 3"));
  take("deepseek_v2");
  change_config([](json& config) { config.erase("q_lora_rank"); });
  EXPECT_THAT(refusal(), HasSubstr("q_a_proj"));
  // Null is not the same: no number.
  take("deepseek_v3");
  change_config([](json& config) { config["routed_scaling_factor"] = nullptr; });
  EXPECT_THAT(refusal(), HasSubstr("routed_scaling_factor is missing"));
}

TEST_F(Spoilt, FamiliesThatAreNotKnownAndQuantisedModelsAreRefused) {
  const auto refused = [&](const json& how) {
    take("mixtral");
    change_config([&](json& config) { config["quantization_config"] = how; });
    return refusal();
  };
  const json fp8 = {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"weight_block_size", {128, 128}}};
  const auto changed = [&](const char* key, const json& value) {
    json how = fp8;
    how[key] = value;
    return how;
  };
  EXPECT_THAT(refused({{"quant_method", "mxfp4"}}),
              AllOf(HasSubstr("quant_method = \"mxfp4\""), HasSubstr("Save any other as bfloat16 first")));
  EXPECT_THAT(refused(changed("fmt", "e5m2")), HasSubstr("has fmt = \"e5m2\""));
  EXPECT_THAT(refused(changed("activation_scheme", "static")), HasSubstr("activation_scheme"));
  EXPECT_THAT(refused(changed("bits", 4)), HasSubstr("has bits, which is not known"));
  for (const json& size : {json(), json({128}), json({128, 0}), json({-1, 128}), json({1.5, 2}), json("128")}) {
    EXPECT_THAT(refused(changed("weight_block_size", size)), HasSubstr("two sizes were expected"));
  }
  EXPECT_THAT(refused(json::array()), HasSubstr("quantization_config is no object"));
  take("mixtral");
  change_config([](json& config) { config["model_type"] = "jamba"; });
  EXPECT_THAT(refusal(), AllOf(HasSubstr("family \"jamba\""), HasSubstr("known are mixtral")));
  std::ofstream(folder_ / "source/config.json") << "{";
  EXPECT_THAT(refusal(), HasSubstr("config.json': not valid JSON"));
  fs::remove(folder_ / "source/config.json");
  EXPECT_THAT(refusal(), HasSubstr("has no config.json"));
}

TEST_F(Spoilt, WhatGptOssSaysAndWeCannotComputeIsRefused) {
  const auto with = [&](const char* key, const json& value) {
    take("gpt_oss");
    change_config([&](json& config) { config[key] = value; });
    return refusal();
  };
  EXPECT_THAT(with("swiglu_limit", 5.0), HasSubstr("swiglu_limit"));
  EXPECT_THAT(with("swiglu_alpha", 1.0), HasSubstr("swiglu_alpha"));
  EXPECT_THAT(with("experts_per_token", 4), HasSubstr("experts_per_token = 4, but num_experts_per_tok = 2"));
  EXPECT_THAT(with("rope_parameters", json()), HasSubstr("rope_scaling is missing"));
  const auto types = [](std::initializer_list<int> full) {
    json all;
    for (const int one : full) {
      all.push_back(one != 0 ? "full_attention" : "sliding_attention");
    }
    return all;
  };
  for (const json& wrong : {types({1, 0, 1}), types({0, 1}), types({0, 1, 1}), json({"chunked_attention", "x", "y"}),
                            json("full_attention")}) {
    EXPECT_THAT(with("layer_types", wrong), HasSubstr("layer_types = ")) << wrong;
  }
}

TEST_F(Spoilt, LayerTypesOfGptOssAreWindows) {
  const auto windows = [&](const json& types) {
    take("gpt_oss");
    change_config([&](json& config) { config["layer_types"] = types; });
    fs::remove_all(folder_ / "run");
    import_into(folder_ / "run", folder_ / "source");
    const ModelSettings m = config_of(folder_ / "run").settings.model;
    return std::vector<std::int64_t>{m.sliding_window, m.full_attention_every};
  };
  const json full = "full_attention", sliding = "sliding_attention";
  EXPECT_EQ(windows(json()), (std::vector<std::int64_t>{5, 2}));
  EXPECT_EQ(windows({sliding, full, sliding}), (std::vector<std::int64_t>{5, 2}));
  EXPECT_EQ(windows({sliding, sliding, full}), (std::vector<std::int64_t>{5, 3}));
  EXPECT_EQ(windows({sliding, sliding, sliding}), (std::vector<std::int64_t>{5, 0}));
  EXPECT_EQ(windows({full, full, full}), (std::vector<std::int64_t>{0, 0}));
}

TEST_F(Spoilt, ScalesThatDoNotFitTheirMatrixAreRefused) {
  const std::string matrix = "model.layers.1.self_attn.o_proj.weight", scales = matrix + "_scale_inv";
  take("deepseek_v3_fp8");
  rewrite([&](const FileTensor& t) { return t.name == scales ? "" : t.name; });
  EXPECT_THAT(refusal(), HasSubstr(matrix + " is F8_E4M3, and its scales are missing: " + scales));
  take("deepseek_v3_fp8");
  change_config([](json& config) { config["quantization_config"]["weight_block_size"] = {8, 8}; });
  EXPECT_THAT(refusal(), AllOf(HasSubstr("q_b_proj.weight_scale_inv is F32 [5, 1], where [5, 2] of F32"),
                               HasSubstr("blocks of 8 x 8"), Not(HasSubstr("has no place for"))));
  take("deepseek_v3_fp8");
  change_config([](json& config) { config.erase("quantization_config"); });
  EXPECT_THAT(refusal(), HasSubstr("config.json has no quantization_config that says its scales"));
  take("deepseek_v3_fp8");
  rewrite(same_name, "model.safetensors", [&](FileTensor& t) {
    if (t.name == matrix) {
      t.dtype = DType::f8_e5m2;
    }
  });
  EXPECT_THAT(refusal(), HasSubstr(matrix + " is F8_E5M2: F32, BF16, F16 and F8_E4M3 are read"));
}

TEST_F(Spoilt, AFolderMayHaveAnyName) {
  take("mistral");
  fs::create_directories(folder_ / "a \"b\" \\c");
  fs::rename(folder_ / "source", folder_ / "two\nlines = 1");
  const fs::path run = folder_ / "a \"b\" \\c" / "run";
  import_into(run, folder_ / "two\nlines = 1");
  EXPECT_EQ(fs::path(config_of(run).settings.run.directory), run.parent_path());
}

TEST(Import, OfTheProgramSaysWhatItMade) {
  run_test::ProgramFolder folder;
  const auto result = folder.orthant(
      {"import", paths::published_model("qwen3_moe_packed").string(), "-o", folder.path("base").string()});
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("of a qwen3_moe"), HasSubstr("experts packed"), HasSubstr("receipt.json")));
  const auto again = folder.orthant(
      {"import", paths::published_model("qwen3_moe_packed").string(), "-o", folder.path("base").string()});
  EXPECT_EQ(again.code, 78);
  EXPECT_THAT(again.error, HasSubstr("is there already"));
  const json receipt = json::parse(read_file(folder.path("base") / "pretrained/receipt.json"));
  EXPECT_EQ(receipt["experts"], "packed");
  EXPECT_EQ(receipt["files"][0]["sha256"].get<std::string>().size(), 64U);
  EXPECT_EQ(receipt["tensors"]["model.layers.1.block_sparse_moe.experts.2.w3.weight"]["from"],
            "model.layers.1.mlp.experts.gate_up_proj");
}

// A program that does what the script of a check would: writes these logits, or fails.
std::string fake_python(const run_test::ProgramFolder& folder, const std::string& body) {
  folder.write("python", "#!/bin/bash\n" + body);
  fs::permissions(folder.path("python"), fs::perms::owner_all);
  return folder.path("python").string();
}

TEST(ImportCheck, ComparesLogitsAndRefusesAnotherModel) {
  run_test::ProgramFolder folder;
  const fs::path model = paths::published_model("mixtral");
  const auto import = [&](const std::string& python) {
    return folder.orthant({"import", model.string(), "-o", folder.path("run").string(), "--check", python});
  };
  // "-c", the script, the model's folder, ids, the file of the logits, that of the versions.
  const std::string versions = "printf 'transformers of a test' > \"$6\"\n";
  const auto zeros = import(fake_python(folder, versions + "head -c 9728 /dev/zero > \"$5\""));  // 64 x 38
  EXPECT_EQ(zeros.code, 1);
  EXPECT_THAT(zeros.error,
              AllOf(HasSubstr("differ from those of transformers of a test"), HasSubstr("1e-03 is allowed")));
  const auto few = import(fake_python(folder, versions + "head -c 16 /dev/zero > \"$5\""));
  EXPECT_THAT(few.error, HasSubstr("transformers of a test finds 4"));
  const auto ones = import(fake_python(folder, versions + R"(head -c 9728 /dev/zero | tr '\0' '\377' > "$5")"));
  EXPECT_EQ(ones.code, 1);
  EXPECT_THAT(ones.error, HasSubstr("nan by transformers of a test"));
  const auto fails = import(fake_python(folder, "echo 'it is broken'; exit 1"));
  EXPECT_THAT(fails.error, AllOf(HasSubstr("ended with code 1"), HasSubstr("it is broken")));
  EXPECT_THAT(import(fake_python(folder, "echo no torch; exit 3")).error, HasSubstr("pip install them there"));
  EXPECT_THAT(import(folder.path("nowhere").string()).error, HasSubstr("it cannot be run"));
  EXPECT_FALSE(fs::exists(folder.path("run")));
  const auto quantised = folder.orthant({"import", paths::published_model("deepseek_v3_fp8").string(), "-o",
                                         folder.path("run").string(), "--check", "python"});
  EXPECT_EQ(quantised.code, 78);
  EXPECT_THAT(quantised.error, HasSubstr("Leave out --check"));
}

TEST(ImportCheck, ByTransformersFindsTheSameModel) {
  if (paths::python().empty()) {
    GTEST_SKIP() << "no ORTHANT_PYTHON and no .venv/bin/python with torch and transformers";
  }
  run_test::ProgramFolder folder;
  const auto import = [&](const fs::path& model, const std::string& run) {
    return folder.orthant({"import", model.string(), "-o", folder.path(run).string(), "--check", paths::python()});
  };
  const auto first = import(paths::published_model("mixtral"), "mixtral");
  if (first.error.find("pip install them there") != std::string::npos) {
    GTEST_SKIP() << paths::python() << " lacks torch or transformers";
  }
  EXPECT_EQ(first.code, 0) << first.error;
  EXPECT_THAT(first.output, HasSubstr("checked    logits of 64 tokens by transformers "));
  for (const std::string model : {"mixtral", "deepseek_v3", "llama_f16"}) {
    const auto result = model == "mixtral" ? first : import(paths::published_model(model), model);
    EXPECT_EQ(result.code, 0) << result.error;
    const json check = json::parse(read_file(folder.path(model) / "pretrained/receipt.json"))["check"];
    EXPECT_EQ(check["tokens"], 64);
    EXPECT_GT(check["largest_logit"], 1);
    EXPECT_LT(check["difference_over_largest"], 2e-5) << model;
    EXPECT_GT(check["difference_over_largest"], 0) << "compared with itself?";
  }
}

}  // namespace
}  // namespace orthant::import_test
