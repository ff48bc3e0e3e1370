// Keys of config.json for which 0, null, false and nothing differ, or do not: as transformers takes them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "apps/pretrained/export.h"
#include "core/arch/rotary.h"
#include "core/checkpoint/checkpoint.h"
#include "core/layers/attention.h"
#include "core/run/starting_weights.h"
#include "tests/pretrained/spoilt_model.h"

namespace orthant::spoilt_test {
namespace {

using import_test::config_of;
using import_test::import_into;
using nlohmann::json;
using testing::HasSubstr;

class OptionalKeys : public Spoilt {
 protected:
  // Of a model with these members in its rope_parameters, "yarn" if they do not say another type.
  RotaryKeys with(const char* model, const json& members) {
    make(model, members);
    import_into(folder_ / "run", folder_ / "source");
    const auto read = read_keys<RotaryKeys>(config_of(folder_ / "run").settings.model.own);
    std::filesystem::remove_all(folder_ / "run");
    return read;
  }
  std::string refused(const char* model, const json& members) {
    make(model, members);
    return refusal();
  }

 private:
  void make(const char* model, const json& members) {
    take(model);
    change_config([&](json& config) {
      json rope = {
          {"rope_type", "yarn"}, {"rope_theta", 1e4}, {"factor", 4.0}, {"original_max_position_embeddings", 16}};
      rope.update(members);
      config["rope_parameters"] = rope;
    });
  }
};

TEST_F(OptionalKeys, AnAttentionFactorOfZeroIsNoWayToSayNothing) {
  EXPECT_THAT(refused("llama", {{"attention_factor", 0.0}}),
              HasSubstr("rope_scaling.attention_factor = 0.0: a number above 0 was expected"));
  EXPECT_THAT(refused("llama", {{"attention_factor", -1.0}}), HasSubstr("attention_factor = -1.0: a number above 0"));
  EXPECT_THAT(refused("llama", {{"attention_factor", false}}), HasSubstr("attention_factor = false: a number was"));
  EXPECT_EQ(with("llama", {{"attention_factor", nullptr}}).rope_attention_factor, 0);
  EXPECT_EQ(with("llama", {{"attention_factor", 1.5}}).rope_attention_factor, 1.5);
}

TEST_F(OptionalKeys, ZeroBetasAreTheClasses) {
  const RotaryKeys zero = with("llama", {{"beta_fast", 0}, {"beta_slow", 0.0}});
  EXPECT_EQ(zero.rope_beta_fast, 32);
  EXPECT_EQ(zero.rope_beta_slow, 1);
  const RotaryKeys one = with("llama", {{"beta_fast", 1}, {"beta_slow", 1}});
  EXPECT_EQ(one.rope_beta_fast, 1);
  EXPECT_EQ(one.rope_beta_slow, 1);
}

TEST_F(OptionalKeys, OneOfTwoMscalesCountsForScoresAlone) {
  for (const json& zero : {json(0.0), json(0), json(nullptr)}) {
    const RotaryKeys of_all = with("deepseek_v3", {{"mscale", zero}, {"mscale_all_dim", 1.0}});
    EXPECT_EQ(of_all.rope_mscale, 0);
    EXPECT_EQ(of_all.rope_mscale_all_dim, 1);
    const RotaryKeys alone = with("deepseek_v3", {{"mscale", 0.7}, {"mscale_all_dim", zero}});
    EXPECT_EQ(alone.rope_mscale, 0);
    EXPECT_EQ(alone.rope_mscale_all_dim, 0);
  }
}

TEST_F(OptionalKeys, WhatIsMissingFollowsFromTheLengthOfSequences) {
  EXPECT_EQ(with("llama", {{"factor", nullptr}}).rope_factor, 4);  // 64 positions of 16
  EXPECT_EQ(with("llama", {{"original_max_position_embeddings", nullptr}}).rope_original_positions, 64);
  EXPECT_THAT(refused("llama", {{"rope_type", "linear"}, {"factor", nullptr}}), HasSubstr("factor = null: a number"));
  EXPECT_TRUE(with("llama", {{"truncate", true}}).rope_truncate);
  EXPECT_FALSE(with("llama", {{"truncate", false}}).rope_truncate);
}

TEST_F(OptionalKeys, GemmasCapsAreThereUnlessTheyAreNull) {
  const auto caps = [&](const json& changes, std::vector<const char*> erased) {
    take("gemma2");
    change_config([&](json& config) {
      config.update(changes);
      for (const char* key : erased) {
        config.erase(key);
      }
    });
    import_into(folder_ / "run", folder_ / "source");
    const ModelSettings read = config_of(folder_ / "run").settings.model;
    std::filesystem::remove_all(folder_ / "run");
    return std::pair(read_keys<MultiHeadKeys>(read.own).attention_softcap, read.logit_softcap);
  };
  EXPECT_EQ(caps(json::object(), {"attn_logit_softcapping", "final_logit_softcapping"}), std::pair(50.0, 30.0));
  EXPECT_EQ(caps({{"attn_logit_softcapping", nullptr}, {"final_logit_softcapping", nullptr}}, {}), std::pair(0.0, 0.0));
  take("gemma2");
  change_config([](json& config) { config["final_logit_softcapping"] = 0.0; });
  EXPECT_THAT(refusal(), HasSubstr("final_logit_softcapping = 0.0: a number above 0 or null"));
}

TEST_F(OptionalKeys, WhatToolsLeaveInAConfigurationIsRead) {
  take("llama");
  change_config([](json& config) {
    config.update({{"unsloth_version", "2026.1"},
                   {"unsloth_fixed", true},
                   {"_attn_implementation_autoset", true},
                   {"_commit_hash", "0f3a"},
                   {"quantization_config", nullptr},
                   {"use_mrope", false},
                   {"is_llama_config", true},
                   {"rope_interleaved", false},
                   {"add_cross_attention", false},
                   {"chunk_size_feed_forward", 0},
                   {"id2label", {{"0", "LABEL_0"}}},
                   {"is_decoder", false},
                   {"max_length", 20},
                   {"num_beams", 1},
                   {"pruned_heads", json::object()},
                   {"temperature", 1.0},
                   {"tie_encoder_decoder", false},
                   {"top_k", 50},
                   {"top_p", 1.0},
                   {"torchscript", false},
                   {"typical_p", 1.0}});
  });
  import_into(folder_ / "run", folder_ / "source");
  std::filesystem::remove_all(folder_ / "run");
  for (const auto& [key, value] : std::vector<std::pair<std::string, json>>{
           {"use_mrope", true}, {"rope_interleaved", true}, {"chunk_size_feed_forward", 8}, {"top_k", 8}}) {
    take("llama");
    change_config([&, &name = key, &other = value](json& config) { config[name] = other; });
    EXPECT_THAT(refusal(), HasSubstr(key + " = " + value.dump() + ": this key is not known"));
  }
}

TEST_F(OptionalKeys, AKeyThatIsPassedOverStandsInTheReceipt) {
  take("llama");
  change_config([](json& config) { config["house_style"] = "ours"; });
  EXPECT_THAT(refusal(), HasSubstr("--pass-over house_style"));
  const auto import_with = [&](std::vector<std::string> keys) {
    import_model({.source = folder_ / "source", .output = folder_ / "run", .left_out = {}, .passed_over = keys},
                 keys_of_plugin);
  };
  import_with({"house_style"});
  const json receipt = json::parse(launch_test::read_file(folder_ / "run/pretrained/receipt.json"));
  EXPECT_EQ(receipt["passed_over"], json({{"house_style", "\"ours\""}}));
  std::filesystem::remove_all(folder_ / "run");
  for (const char* key : {"hidden_size", "absent"}) {
    EXPECT_THAT(test::error_of([&] {
                  import_with({"house_style", key});
                }),
                HasSubstr(std::string(key) + ": passed over, but"));
  }
}

TEST_F(OptionalKeys, AVocabularyGrowsByRowsThatAreTheMeanOfAll) {
  take("qwen3");  // in bf16, and not tied
  const auto grown = [&](std::int64_t vocabulary) {
    import_model({.source = folder_ / "source", .output = folder_ / "run", .left_out = {}, .vocabulary = vocabulary},
                 keys_of_plugin);
  };
  EXPECT_THAT(test::error_of([&] { grown(37); }), HasSubstr("has 38 tokens already"));
  grown(41);
  EXPECT_EQ(config_of(folder_ / "run").settings.model.vocab_size, 41);
  const CheckpointReader reader(starting_checkpoint(folder_ / "run"));
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
    std::vector<float> table(41 * 24);
    reader.read(name, {0, 0}, {41, 24}, table.data());
    for (std::size_t j = 0; j < 24; ++j) {
      double sum = 0;
      for (std::size_t i = 0; i < 38; ++i) {
        sum += table[i * 24 + j];
      }
      EXPECT_NEAR(table[40 * 24 + j], sum / 38, 1e-7);
    }
  }
  export_run({.run = folder_ / "run", .output = folder_ / "out"}, keys_of_plugin);
  const json written = json::parse(launch_test::read_file(folder_ / "out/config.json"));
  EXPECT_EQ(written["vocab_size"], 41);
  EXPECT_EQ(written["model_type"], "qwen3");
}

}  // namespace
}  // namespace orthant::spoilt_test
