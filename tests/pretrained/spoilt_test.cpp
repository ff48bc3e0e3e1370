// What a careless converter would let pass: models whose files say what is not so, or what we cannot compute.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/pretrained/export.h"
#include "core/checkpoint/checkpoint.h"
#include "tests/pretrained/spoilt_model.h"

namespace orthant::spoilt_test {
namespace {

namespace fs = std::filesystem;
using import_test::config_of;
using import_test::import_into;
using launch_test::read_file;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

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

// 78, as for all that is wrong with a model.
TEST_F(Spoilt, WeightsThatWereCutShortAreRefused) {
  take("mixtral");
  const fs::path weights = folder_ / "source/model.safetensors";
  fs::resize_file(weights, fs::file_size(weights) - 4);
  EXPECT_THROW(import_into(folder_ / "run", folder_ / "source"), ConfigError);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("model.safetensors"), HasSubstr("cut short?")));
  fs::resize_file(weights, 5);
  EXPECT_THROW(import_into(folder_ / "run", folder_ / "source"), ConfigError);
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
    config["rope_parameters"] = {{"rope_type", "proportional"}, {"rope_theta", 1e4}};
  });
  EXPECT_THAT(refusal(), AllOf(HasSubstr("logit_softcap = 30.0: this key is not known"),
                               HasSubstr("hidden_act = \"gelu\": only \"silu\""),
                               HasSubstr("rms_norm_eps = \"small\": a number was expected"),
                               HasSubstr("num_local_experts is missing"), HasSubstr("rope_type = \"proportional\"")));
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
  EXPECT_THAT(refused({{"partial_rotary_factor", 0.5}}), HasSubstr("this family rotates whole heads"));
  EXPECT_THAT(refused({{"rope_theta", "large"}}), HasSubstr("rope_theta = \"large\""));
}

TEST_F(Spoilt, PartsOfHeadsThatAreNotUnderstoodAreRefused) {
  const auto refused = [&](const char* model, const json& changes) {
    take(model);
    change_config([&](json& config) { config.update(changes); });
    return refusal();
  };
  EXPECT_THAT(refused("glm4_moe", {{"partial_rotary_factor", 0.25}}),
              HasSubstr("says something else than rope_parameters.partial_rotary_factor"));
  EXPECT_THAT(refused("glm4_moe", {{"partial_rotary_factor", 0.01}, {"rope_parameters", nullptr}}),
              HasSubstr("partial_rotary_factor = 0.01: a part of 12 channels"));
  EXPECT_THAT(refused("glm4_moe", {{"partial_rotary_factor", 2.0}, {"rope_parameters", nullptr}}),
              HasSubstr("partial_rotary_factor = 2.0: a part of 12 channels"));
  EXPECT_THAT(refused("glm4_moe", {{"partial_rotary_factor", 0.25}, {"rope_parameters", nullptr}}),
              HasSubstr("rotary_channels: rotary positions turn pairs of a head's 12 channels, not 3"));
  EXPECT_THAT(refused("minimax_m2", {{"rotary_dim", 6}}),
              HasSubstr("rotary_dim = 6, but partial_rotary_factor = 0.5 of 8"));
  EXPECT_THAT(refused("minimax_m2", {{"attn_type_list", {1, 0}}}), HasSubstr("attn_type_list holds 0"));
  EXPECT_THAT(refused("minimax_m2", {{"sliding_window", 16}}), HasSubstr("sliding_window = 16: only null"));
  EXPECT_THAT(refused("dots1", {{"layer_types", nullptr}, {"sliding_window", 16}, {"max_window_layers", 1}}),
              HasSubstr("sliding_window = 16 from layer 1 on"));
  EXPECT_THAT(refused("ernie4_5_moe", {{"moe_layer_end_index", 0}}), HasSubstr("moe_layer_end_index = 0"));
  EXPECT_THAT(refused("ernie4_5_moe", {{"use_bias", true}}), HasSubstr("use_bias = true: only false"));
}

TEST_F(Spoilt, WhatErniesClassTakesForWhatIsMissing) {
  take("ernie4_5_moe");
  change_config([](json& config) {
    for (const char* key :
         {"tie_word_embeddings", "moe_layer_interval", "moe_layer_start_index", "moe_layer_end_index"}) {
      config.erase(key);
    }
    config["use_rmsnorm"] = true;
    config["_attn_implementation"] = "eager";
  });
  import_into(folder_ / "run", folder_ / "source");
}

TEST_F(Spoilt, WhatMiniMaxM2IsPublishedWithIsRead) {
  // As its config.json has them, beside keys that the class knows.
  take("minimax_m2");
  change_config([](json& config) {
    config.update({{"attention_bias", false},
                   {"attn_type_list", {1, 1}},
                   {"auto_map", {{"AutoConfig", "configuration_minimax_m2.MiniMaxM2Config"}}},
                   {"layernorm_full_attention_beta", 1.0},
                   {"layernorm_linear_attention_beta", 1.0},
                   {"layernorm_mlp_beta", 1.0},
                   {"mlp_intermediate_size", 8192},
                   {"mtp_transformer_layers", 1},
                   {"num_mtp_modules", 3},
                   {"qk_norm_type", "per_layer"},
                   {"quantization_config",
                    {{"activation_scheme", "dynamic"},
                     {"fmt", "float8_e4m3fn"},
                     {"quant_method", "fp8"},
                     {"weight_block_size", {128, 128}},
                     {"modules_to_not_convert", {"gate", "e_score_correction_bias", "lm_head"}}}},
                   {"rotary_dim", 4},
                   {"scoring_func", "sigmoid"},
                   {"shared_intermediate_size", 0},
                   {"shared_moe_mode", "sigmoid"},
                   {"sliding_window", nullptr},
                   {"use_mtp", true},
                   {"use_qk_norm", true},
                   {"use_routing_bias", true}});
  });
  import_into(folder_ / "run", folder_ / "source");
  EXPECT_EQ(config_of(folder_ / "run").settings.model.rotary_channels, 4);
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
  const Settings grouped = reads("deepseek_v3", "n_group", {"topk_group", 4}),
                 some = reads("deepseek_v3", "topk_group");
  EXPECT_EQ(read_keys<ChoiceKeys>(grouped.moe.own).expert_groups, 8);
  EXPECT_EQ(read_keys<ChoiceKeys>(some.moe.own).groups_per_token, 4);
  EXPECT_EQ(reads("deepseek_v2", "n_shared_experts").moe.shared_experts, 2);
  EXPECT_EQ(reads("deepseek_v3", "n_shared_experts").moe.shared_experts, 1);
  EXPECT_EQ(reads("mistral", "sliding_window").model.sliding_window, 4096);
  EXPECT_EQ(reads("mixtral", "sliding_window").model.sliding_window, 0);
  EXPECT_EQ(reads("glm4_moe", "rope_parameters").model.rotary_channels, 6);
  EXPECT_EQ(reads("glm4_moe", "rope_parameters", {"partial_rotary_factor", nullptr}).model.rotary_channels, 0);
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
