// The config.json of a published model: what is not refused is a configuration of ours, or is refused as one.
#include <orthant/error.h>

#include <nlohmann/json.hpp>

#include "apps/pretrained/family.h"
#include "apps/pretrained/source_floats.h"
#include "core/base/json.h"
#include "tests/config/fake_plugins.h"
#include "tests/fuzz/scratch_file.h"
#include "tests/fuzz/target.h"

namespace orthant::fuzz {
namespace {

int read_published(const std::uint8_t* data, std::size_t size) {
  const std::string where = "config.json";
  try {
    const Json json = parse_json(std::as_bytes(std::span(data, size)), where);
    require(json.is_object() && json.contains("model_type") && json["model_type"].is_string(), "no model_type");
    const Family* family = find_family(json["model_type"].get<std::string>());
    require(family != nullptr, "no family");
    ConfigLink::Theirs theirs(json);
    scale_blocks_in(theirs, where);
    theirs.erase("quantization_config");
    ConfigLink reading(theirs);
    family->state(reading);
    std::vector<std::string> ours;
    for (const auto& [key, value] : reading.read(where)) {
      ours.push_back(key + "=" + value);
    }
    static constexpr std::string_view good = "[data]\nsource = \"synthetic\"\n";
    const ScratchFile file(good.data(), good.size());
    load_config(file.path(), ours, fake_plugin_keys);
  } catch (const Error&) {
  }
  return 0;
}

// Good ones, and each with every key of theirs as what it never is.
std::vector<std::string> published_seeds() {
  const std::vector<std::string> good = {
      R"({"model_type":"qwen3_moe","attention_bias":false,"decoder_sparse_step":2,"head_dim":6,"hidden_act":"silu",)"
      R"("hidden_size":24,"intermediate_size":22,"max_position_embeddings":64,"mlp_only_layers":[],)"
      R"("moe_intermediate_size":14,"norm_topk_prob":true,"num_attention_heads":4,"num_experts_per_tok":2,)"
      R"("num_hidden_layers":2,"num_key_value_heads":2,"num_experts":6,"rms_norm_eps":1e-06,"rope_theta":10000.0,)"
      R"("rope_scaling":{"rope_type":"linear","factor":2.0},"sliding_window":null,"tie_word_embeddings":false,)"
      R"("use_sliding_window":false,"vocab_size":38})",
      R"({"model_type":"deepseek_v3","attention_bias":false,"first_k_dense_replace":1,"hidden_act":"silu",)"
      R"("hidden_size":24,"intermediate_size":22,"kv_lora_rank":6,"max_position_embeddings":64,)"
      R"("moe_intermediate_size":14,"n_group":4,"n_routed_experts":8,"n_shared_experts":1,"norm_topk_prob":true,)"
      R"("num_attention_heads":4,"num_experts_per_tok":3,"num_hidden_layers":2,"num_key_value_heads":4,)"
      R"("q_lora_rank":10,"qk_nope_head_dim":6,"qk_rope_head_dim":4,"rms_norm_eps":1e-06,"rope_parameters":)"
      R"({"beta_fast":32.0,"beta_slow":1.0,"factor":4.0,"mscale":1.0,"mscale_all_dim":0.7,)"
      R"("original_max_position_embeddings":16,"rope_theta":10000.0,"rope_type":"yarn"},"routed_scaling_factor":2.5,)"
      R"("scoring_func":"sigmoid","topk_method":"noaux_tc","topk_group":2,"v_head_dim":6,"vocab_size":38,)"
      R"("quantization_config":{"quant_method":"fp8","fmt":"e4m3","weight_block_size":[128,128]}})",
      R"({"model_type":"llama","attention_bias":true,"head_dim":6,"hidden_act":"silu","hidden_size":24,)"
      R"("intermediate_size":22,"max_position_embeddings":64,"mlp_bias":false,"num_attention_heads":4,)"
      R"("num_hidden_layers":2,"num_key_value_heads":2,"rms_norm_eps":1e-06,"rope_theta":5e5,"rope_scaling":)"
      R"({"factor":8.0,"high_freq_factor":4.0,"low_freq_factor":1.0,"original_max_position_embeddings":16,)"
      R"("rope_type":"llama3"},"tie_word_embeddings":false,"vocab_size":38})",
      R"({"model_type":"qwen2_moe","decoder_sparse_step":1,"hidden_act":"silu","hidden_size":24,)"
      R"("intermediate_size":22,"layer_types":["full_attention","full_attention"],"max_position_embeddings":64,)"
      R"("mlp_only_layers":[0],"moe_intermediate_size":14,"norm_topk_prob":false,"num_attention_heads":2,)"
      R"("num_experts":6,"num_experts_per_tok":2,"num_hidden_layers":2,"num_key_value_heads":2,"qkv_bias":true,)"
      R"("rms_norm_eps":1e-06,"shared_expert_intermediate_size":18,"sliding_window":0,"vocab_size":38})"};
  std::vector<std::string> seeds = good;
  for (const std::string& text : good) {
    const Json config = Json::parse(text);
    for (const auto& [key, value] : config.items()) {
      for (const char* odd : {"null", "true", "-1", "0", "0.5", "1e300", "9223372036854775807", "18446744073709551615",
                              "\"\"", "\"NaN\"", "[]", "[[1]]", "[-1,99]", "{}", R"({"rope_type":7,"factor":null})"}) {
        Json other = config;
        other[key] = Json::parse(odd);
        seeds.push_back(other.dump());
      }
    }
  }
  return seeds;
}

}  // namespace

const Target published = {"published", read_published, published_seeds};

}  // namespace orthant::fuzz
