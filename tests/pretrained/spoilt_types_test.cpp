// As spoilt_test.cpp, of gpt-oss and of weights in 8 and 4 bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/pretrained/export.h"
#include "core/arch/rotary.h"
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
using testing::Not;

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
  EXPECT_EQ(config_of(folder_ / "run").settings.model.own.at("rope_original_positions"), Value(std::int64_t{16}));
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
  const auto first = read_keys<RotaryKeys>(config_of(folder_ / "run").settings.model.own),
             again = read_keys<RotaryKeys>(config_of(folder_ / "again").settings.model.own);
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
  change_config([](json& config) { config["quantization_config"]["weight_block_size"] = {5, 10}; });
  EXPECT_THAT(refusal(), HasSubstr(experts + " is F8_E4M3, and its 28 rows, gate above up, are no whole number of "
                                             "blocks of 5 x 10: which scale is whose is not known"));
  change_config([](json& config) { config["quantization_config"]["weight_block_size"] = {4, 12}; });
  EXPECT_THAT(refusal(), HasSubstr(scales + " is F32 [6, 7, 3], where [6, 7, 2] of F32"));
  // One for each matrix, where blocks have theirs; and the other way round.
  change_config([](json& config) { config["quantization_config"]["weight_block_size"] = nullptr; });
  const std::string down = "model.layers.1.mlp.experts.down_proj_scale_inv";
  EXPECT_THAT(refusal(),
              HasSubstr(down + " is F32 [6, 6, 2], where [6, 1, 1] of F32, BF16 or F16 were expected: one for "
                               "each matrix"));
  take("qwen3_moe_fp8_whole");
  change_config([](json& config) { config["quantization_config"]["weight_block_size"] = {8, 10}; });
  EXPECT_THAT(refusal(), HasSubstr(down + " is BF16 [6, 1, 1], where [6, 3, 2] of F32"));
}

}  // namespace
}  // namespace orthant::spoilt_test
