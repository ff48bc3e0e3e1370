#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "apps/pretrained/family.h"
#include "apps/pretrained/family_parts.h"

namespace orthant {
namespace {

using Theirs = ConfigLink::Theirs;
using namespace family_parts;

// Qwen's: a window of the layers from max_window_layers on, where use_sliding_window says so; layer_types repeats it.
void no_window(ConfigLink& c) {
  c.theirs("use_sliding_window", false);
  c.besides({"sliding_window", "max_window_layers"});
  if (!c.reading()) {
    return;
  }
  for (const Theirs& type : c.take("layer_types")) {
    if (type != "full_attention") {
      c.refuse(fmt::format("layer_types holds {}: only \"full_attention\" can be computed here", type.dump()));
      return;
    }
  }
}

// Which blocks are routed, as Qwen says it: every n-th, but for some by number. Here those can only be the first ones.
void qwen_blocks(ConfigLink& c) {
  c.integer("decoder_sparse_step", "moe.every", 1);
  if (!c.reading()) {
    Theirs first = Theirs::array();
    for (std::int64_t i = 0; i < c.our_integer("moe.first_dense"); ++i) {
      first.push_back(i);
    }
    c.put("mlp_only_layers", first);
    return;
  }
  const Theirs layers = c.take("mlp_only_layers");
  std::vector<std::int64_t> numbers;
  for (const Theirs& layer : layers) {
    numbers.push_back(layer.is_number_integer() ? layer.get<std::int64_t>() : -1);
  }
  std::sort(numbers.begin(), numbers.end());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] != static_cast<std::int64_t>(i)) {
      c.refuse(fmt::format("mlp_only_layers = {}: only the first blocks can be dense by number", layers.dump()));
      return;
    }
  }
  c.set("moe.first_dense", std::to_string(numbers.size()));
}

void mixtral(ConfigLink& c) {
  transformer(c, {.theta = 1e6});
  head_dim(c);
  c.ours("model.biases", "false");
  window(c, Theirs());
  c.integer("intermediate_size", "moe.d_expert");
  routed(c, "num_local_experts");
  softmax_gate(c);
  c.ours("moe.normalize_weights", "true");
  c.ours("moe.every", "1");
  c.number("router_jitter_noise", "moe.jitter", 0.0);
  trained_by_transformers(c, 0.001);
}

void mistral(ConfigLink& c) {
  transformer(c, {});
  head_dim(c);
  c.ours("model.biases", "false");
  window(c, 4096);
  dense(c);
}

void llama(ConfigLink& c) {
  transformer(c, {});
  head_dim(c);
  attention_bias(c);
  c.theirs("mlp_bias", false);
  dense(c);
}

void qwen2(ConfigLink& c) {
  transformer(c, {});
  no_head_dim(c);
  no_window(c);
  c.ours("model.biases", "true");
  dense(c);
}

// Of Qwen3, dense or not: each head of queries and keys is normalised.
void qwen3_attention(ConfigLink& c) {
  transformer(c, {});
  head_dim(c);
  attention_bias(c);
  no_window(c);
  c.ours("model.qk_norm", "true");
  c.ours("model.qk_norm_over", R"("head")");
}

void qwen3(ConfigLink& c) {
  qwen3_attention(c);
  dense(c);
}

// Of OLMoE and FlexOlmo.
void olmo_experts(ConfigLink& c) {
  c.integer("intermediate_size", "moe.d_expert");
  routed(c, "num_experts", "num_local_experts");
  softmax_gate(c);
  c.flag("norm_topk_prob", "moe.normalize_weights", false);
  c.ours("moe.every", "1");
  trained_by_transformers(c, 0.01);
}

void olmoe(ConfigLink& c) {
  transformer(c, {});
  no_head_dim(c);
  attention_bias(c);
  c.theirs("clip_qkv", Theirs());
  c.ours("model.qk_norm", "true");
  c.ours("model.qk_norm_over", R"("all")");
  olmo_experts(c);
}

// OLMo 2, and FlexOlmo with experts: what leaves attention and feed-forward layers is normalised.
void olmo2_attention(ConfigLink& c, double theta) {
  transformer(c, {.theta = theta});
  head_dim(c);
  attention_bias(c);
  c.theirs("clip_qkv", Theirs());
  c.ours("model.qk_norm", "true");
  c.ours("model.qk_norm_over", R"("all")");
  c.ours("model.norm_place", R"("after")");
}

void olmo2(ConfigLink& c) {
  olmo2_attention(c, 1e4);
  dense(c);
}

void flex_olmo(ConfigLink& c) {
  olmo2_attention(c, 5e5);
  olmo_experts(c);
}

void qwen2_moe(ConfigLink& c) {
  transformer(c, {});
  no_head_dim(c);
  no_window(c);
  c.flag("qkv_bias", "model.biases", true);
  c.integer("intermediate_size", "model.d_ff");
  c.integer("moe_intermediate_size", "moe.d_expert");
  routed(c, "num_experts", "num_local_experts");
  qwen_blocks(c);
  softmax_gate(c);
  c.flag("norm_topk_prob", "moe.normalize_weights", false);
  c.ours("moe.shared_experts", "1");
  c.ours("moe.shared_gate", "true");
  c.integer("shared_expert_intermediate_size", "moe.d_shared");
  trained_by_transformers(c, 0.001);
}

void qwen3_moe(ConfigLink& c) {
  qwen3_attention(c);
  c.integer("intermediate_size", "model.d_ff");
  c.integer("moe_intermediate_size", "moe.d_expert");
  routed(c, "num_experts", "num_local_experts");
  qwen_blocks(c);
  softmax_gate(c);
  c.flag("norm_topk_prob", "moe.normalize_weights", false);
  trained_by_transformers(c, 0.001);
}

// Ling 2.0. transformers has no class of it: its folders bring the code.
Family bailing(const char* model_type) {
  return {model_type,
          "BailingMoeV2ForCausalLM",
          MoeNames::mlp,
          "shared_experts",
          bailing_moe_v2,
          ".gate.expert_bias",
          false,
          "",
          {{".self_attn.o_proj.", ".attention.dense."},
           {".self_attn.q_norm.", ".attention.query_layernorm."},
           {".self_attn.k_norm.", ".attention.key_layernorm."},
           {".self_attn.", ".attention."},
           {"model.embed_tokens.", "model.word_embeddings."}},
          {{".query_key_value.weight", {".q_proj.weight", ".k_proj.weight", ".v_proj.weight"}}}};
}

}  // namespace

std::span<const Family> families() {
  const char* const bias = ".gate.e_score_correction_bias";
  const char* const depths = "num_nextn_predict_layers";
  static const std::vector<Family> all = {
      {"mixtral", "MixtralForCausalLM", MoeNames::mixtral, "", mixtral},
      {"mistral", "MistralForCausalLM", MoeNames::none, "", mistral},
      {"olmoe", "OlmoeForCausalLM", MoeNames::mlp, "", olmoe},
      {"qwen3_moe", "Qwen3MoeForCausalLM", MoeNames::mlp, "", qwen3_moe},
      {"qwen2_moe", "Qwen2MoeForCausalLM", MoeNames::mlp, "shared_expert", qwen2_moe},
      {"deepseek_v3", "DeepseekV3ForCausalLM", MoeNames::mlp, "shared_experts", deepseek_v3, bias, false, depths},
      // DeepSeek-V3 by another name: transformers has no class of it, its folders bring the code of that one.
      {"kimi_k2", "DeepseekV3ForCausalLM", MoeNames::mlp, "shared_experts", deepseek_v3, bias, false, depths},
      {"deepseek_v2", "DeepseekV2ForCausalLM", MoeNames::mlp, "shared_experts", deepseek_v2},
      {"glm4_moe_lite", "Glm4MoeLiteForCausalLM", MoeNames::mlp, "shared_experts", glm4_moe_lite, bias, false, depths},
      {"glm4_moe", "Glm4MoeForCausalLM", MoeNames::mlp, "shared_experts", glm4_moe, bias, false, depths},
      {"dots1", "Dots1ForCausalLM", MoeNames::mlp, "shared_experts", dots1},
      {"minimax_m2", "MiniMaxM2ForCausalLM", MoeNames::mixtral, "", minimax_m2, ".e_score_correction_bias"},
      {"ernie4_5_moe", "Ernie4_5_MoeForCausalLM", MoeNames::mlp, "shared_experts", ernie4_5_moe,
       ".moe_statics.e_score_correction_bias", true},
      // Some of their folders have the name of the first version, whose keys are refused.
      bailing("bailing_moe_v2"),
      bailing("bailing_moe"),
      {"gpt_oss", "GptOssForCausalLM", MoeNames::gpt_oss, "", gpt_oss},
      {"flex_olmo", "FlexOlmoForCausalLM", MoeNames::mlp, "", flex_olmo},
      {"phimoe", "PhimoeForCausalLM", MoeNames::mixtral, "", phimoe},
      {"granitemoe",
       "GraniteMoeForCausalLM",
       MoeNames::mixtral,
       "",
       granitemoe,
       bias,
       false,
       "",
       {{".block_sparse_moe.gate.", ".block_sparse_moe.router.layer."}},
       {},
       ".block_sparse_moe.input_linear.weight",
       ".block_sparse_moe.output_linear.weight"},
      {"hunyuan_v1_moe",
       "HunYuanMoEV1ForCausalLM",
       MoeNames::mlp,
       "shared_mlp",
       hunyuan_v1_moe,
       bias,
       false,
       "",
       {{".block_sparse_moe.gate.", ".block_sparse_moe.gate.wg."},
        {".self_attn.q_norm.", ".self_attn.query_layernorm."},
        {".self_attn.k_norm.", ".self_attn.key_layernorm."}}},
      {"qwen3", "Qwen3ForCausalLM", MoeNames::none, "", qwen3},
      {"qwen2", "Qwen2ForCausalLM", MoeNames::none, "", qwen2},
      {"llama", "LlamaForCausalLM", MoeNames::none, "", llama},
      {"olmo2", "Olmo2ForCausalLM", MoeNames::none, "", olmo2},
      {"phi3",
       "Phi3ForCausalLM",
       MoeNames::none,
       "",
       phi3,
       bias,
       false,
       "",
       {},
       {{".qkv_proj.weight", {".q_proj.weight", ".k_proj.weight", ".v_proj.weight"}},
        {".gate_up_proj.weight", {".gate_proj.weight", ".up_proj.weight"}}}},
      {"granite", "GraniteForCausalLM", MoeNames::none, "", granite},
      {"gemma2", "Gemma2ForCausalLM", MoeNames::none, "", gemma2},
      {"gemma3_text", "Gemma3ForCausalLM", MoeNames::none, "", gemma3_text},
  };
  return all;
}

const Family* find_family(const std::string& model_type) {
  const std::span<const Family> all = families();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Family& f) { return f.model_type == model_type; });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace orthant
