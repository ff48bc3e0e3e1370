// What a careless converter would let pass: models whose files say what is not so, or what we cannot compute.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/checkpoint/checkpoint.h"
#include "tests/pretrained/import_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/paths.h"

namespace orthant::spoilt_test {
namespace {

namespace fs = std::filesystem;
using import_test::config_of;
using import_test::Folder;
using import_test::import_into;
using launch_test::read_file;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

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

TEST_F(Spoilt, ATokenizerThatWasCutShortIsRefused) {
  take("mixtral");
  std::ofstream(folder_ / "source/tokenizer.json") << R"({"version": "1.0", "model": {"type": "BPE", "vocab": {"a)";
  EXPECT_THAT(refusal(), AllOf(HasSubstr("tokenizer.json' (56 bytes)"), HasSubstr("copy it again")));
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

TEST_F(Spoilt, WhatIsNoPublishedModelIsToldApart) {
  const auto from = [&](const fs::path& source) {
    return test::error_of([&] { import_into(folder_ / "run", source); });
  };
  EXPECT_THAT(from(folder_ / "absent"), AllOf(HasSubstr("absent' is not there"), HasSubstr("from the network")));
  take("mistral");
  EXPECT_THAT(from(folder_ / "source/config.json"), HasSubstr("is a file: give the folder that it lies in"));
  import_into(folder_ / "made", folder_ / "source");
  EXPECT_THAT(from(folder_ / "made"), HasSubstr("is a run already: [train] from takes it"));
  const char* pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
  std::ofstream(folder_ / "source/tokenizer.json") << pointer;
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("tokenizer.json' (70 bytes) is a pointer of Git LFS"), HasSubstr("git lfs pull")));
  fs::remove(folder_ / "source/tokenizer.json");
  std::ofstream(folder_ / "source/model.safetensors") << pointer;
  EXPECT_THAT(refusal(), HasSubstr("model.safetensors' is a pointer of Git LFS"));
  fs::rename(folder_ / "source/model.safetensors", folder_ / "source/model.gguf");
  EXPECT_THAT(refusal(), HasSubstr("has 'model.gguf' and no model.safetensors"));
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
  EXPECT_THAT(refused(changed("activation_scheme", "other")), HasSubstr("activation_scheme"));
  EXPECT_THAT(refused(changed("expert_dtype", "fp4")), HasSubstr("has expert_dtype = \"fp4\""));
  EXPECT_THAT(refused(changed("bits", 4)), HasSubstr("has bits, which is not known"));
  EXPECT_THAT(refused({{"quant_method", "fp8"}, {"fmt", "e4m3"}}), HasSubstr("has no weight_block_size"));
  for (const json& size : {json({128}), json({128, 0}), json({-1, 128}), json({1.5, 2}), json("128")}) {
    EXPECT_THAT(refused(changed("weight_block_size", size)), HasSubstr("two sizes or null were expected"));
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
  EXPECT_THAT(with("swiglu_limit", json()), HasSubstr("swiglu_limit = null"));
  EXPECT_THAT(with("swiglu_alpha", 1.0), HasSubstr("swiglu_alpha"));
  EXPECT_THAT(with("swiglu_alpha", json()), HasSubstr("swiglu_alpha = null"));
  EXPECT_THAT(with("initial_context_length", 32),
              HasSubstr("initial_context_length = 32, but rope_scaling.original_max_position_embeddings = 16"));
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

TEST_F(Spoilt, WhatGptOssNeedNotSayIsTakenAsItsClassTakesIt) {
  take("gpt_oss");
  change_config([](json& config) {
    config.erase("swiglu_limit");
    config["initial_context_length"] = 16;
  });
  import_into(folder_ / "run", folder_ / "source");
  EXPECT_EQ(config_of(folder_ / "run").settings.model.rope_original_positions, 16);
}

TEST_F(Spoilt, BlocksOfFourBitsAreThoseOfAModelThatSaysSo) {
  take("gpt_oss_mxfp4");
  change_config([](json& config) { config["quantization_config"]["bits"] = 4; });
  EXPECT_THAT(refusal(), HasSubstr("quantization_config has bits, which is not known of quant_method \"mxfp4\""));
  take("gpt_oss_mxfp4");
  change_config([](json& config) { config.erase("quantization_config"); });
  EXPECT_THAT(refusal(), HasSubstr("_blocks is in blocks of 4 bits, and config.json has no quantization_config"));
}

// Version 5 of transformers reads rope_parameters, version 4 rope_scaling: both take YaRN where theirs is missing.
TEST_F(Spoilt, AnExportOfGptOssWithoutScalingSaysSoTwiceAndIsReadAgain) {
  take("gpt_oss");
  change_config([](json& config) { config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e4}}; });
  import_into(folder_ / "run", folder_ / "source");
  fs::remove_all(folder_ / "run/pretrained");  // now it is a model of ours
  export_run({.run = folder_ / "run", .output = folder_ / "out"}, keys_of_plugin);
  const json written = json::parse(read_file(folder_ / "out/config.json"));
  const json unscaled = {{"rope_type", "default"}, {"rope_theta", 5e4}};
  EXPECT_EQ(written["rope_parameters"], unscaled);
  EXPECT_EQ(written["rope_scaling"], unscaled);
  import_into(folder_ / "again", folder_ / "out");
  const ModelSettings first = config_of(folder_ / "run").settings.model,
                      again = config_of(folder_ / "again").settings.model;
  EXPECT_EQ(again.rope_scaling, RopeScaling::none);
  EXPECT_EQ(again.rope_theta, first.rope_theta);
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

TEST_F(Spoilt, ScalesOfExpertsInOneTensorThatDoNotFitAreRefused) {
  const std::string experts = "model.layers.1.mlp.experts.gate_up_proj", scales = experts + "_scale_inv";
  take("qwen3_moe_fp8");
  rewrite([&](const FileTensor& t) { return t.name == scales ? "" : t.name; });
  EXPECT_THAT(refusal(), HasSubstr(experts + " is F8_E4M3, and its scales are missing: " + scales));
  take("qwen3_moe_fp8");
  change_config([](json& config) { config["quantization_config"]["weight_block_size"] = {6, 10}; });
  EXPECT_THAT(refusal(), HasSubstr(scales + " is F32 [6, 4, 3], where [6, 6, 3] of F32"));
  // One for each matrix, where blocks have theirs; and the other way round.
  change_config([](json& config) { config["quantization_config"]["weight_block_size"] = nullptr; });
  const std::string down = "model.layers.1.mlp.experts.down_proj_scale_inv";
  EXPECT_THAT(refusal(),
              HasSubstr(down + " is F32 [6, 3, 2], where [6, 1, 1] of F32, BF16 or F16 were expected: one for "
                               "each matrix"));
  take("qwen3_moe_fp8_whole");
  change_config([](json& config) { config["quantization_config"]["weight_block_size"] = {8, 10}; });
  EXPECT_THAT(refusal(), HasSubstr(down + " is BF16 [6, 1, 1], where [6, 3, 2] of F32"));
}

TEST_F(Spoilt, AFolderMayHaveAnyName) {
  take("mistral");
  fs::create_directories(folder_ / "a \"b\" \\c");
  fs::rename(folder_ / "source", folder_ / "two\nlines = 1");
  const fs::path run = folder_ / "a \"b\" \\c" / "run";
  import_into(run, folder_ / "two\nlines = 1");
  EXPECT_EQ(fs::path(config_of(run).settings.run.directory), run.parent_path());
}

}  // namespace
}  // namespace orthant::spoilt_test
