#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/pretrained/family.h"
#include "core/pretrained/family_parts.h"

namespace orthant {
namespace {

using Theirs = ConfigLink::Theirs;
using namespace family_parts;

void head_dim(ConfigLink& c) {
  c.integer("head_dim", "model.head_dim", 0);
}

// Families whose heads share the model's width and say nothing of it.
void no_head_dim(ConfigLink& c) {
  if (!c.reading() &&
      c.our_integer("model.head_dim") * c.our_integer("model.heads") != c.our_integer("model.d_model")) {
    c.refuse(fmt::format("model.head_dim = {}", c.our_integer("model.head_dim")));
  }
}

// Mistral's: a width or null. missing: where the file does not say it.
void window(ConfigLink& c, const Theirs& missing) {
  if (c.reading()) {
    const bool said = c.says("sliding_window");
    const Theirs value = said ? c.take("sliding_window") : missing;
    if (value.is_number_integer()) {
      c.set("model.sliding_window", value.dump());
    } else if (!value.is_null()) {
      c.refuse(fmt::format("sliding_window = {}: a whole number or null was expected", value.dump()));
    }
    return;
  }
  const std::int64_t width = c.our_integer("model.sliding_window");
  c.put("sliding_window", width > 0 ? Theirs(width) : Theirs());
}

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

void dense(ConfigLink& c) {
  c.integer("intermediate_size", "model.d_ff");
  c.ours("moe.experts", "0");
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
  transformer(c, 1e6);
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
  transformer(c, 1e4);
  head_dim(c);
  c.ours("model.biases", "false");
  window(c, 4096);
  dense(c);
}

void llama(ConfigLink& c) {
  transformer(c, 1e4);
  head_dim(c);
  attention_bias(c);
  c.theirs("mlp_bias", false);
  dense(c);
}

void qwen2(ConfigLink& c) {
  transformer(c, 1e4);
  no_head_dim(c);
  no_window(c);
  c.ours("model.biases", "true");
  dense(c);
}

// Of Qwen3, dense or not: each head of queries and keys is normalised.
void qwen3_attention(ConfigLink& c) {
  transformer(c, 1e4);
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

void olmoe(ConfigLink& c) {
  transformer(c, 1e4);
  no_head_dim(c);
  attention_bias(c);
  c.theirs("clip_qkv", Theirs());
  c.ours("model.qk_norm", "true");
  c.ours("model.qk_norm_over", R"("all")");
  c.integer("intermediate_size", "moe.d_expert");
  routed(c, "num_experts", "num_local_experts");
  softmax_gate(c);
  c.flag("norm_topk_prob", "moe.normalize_weights", false);
  c.ours("moe.every", "1");
  trained_by_transformers(c, 0.01);
}

void qwen2_moe(ConfigLink& c) {
  transformer(c, 1e4);
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

// What the class of a DeepSeek takes for a key that is missing. Null is something else: no query rank, or refused.
struct LatentDefaults {
  std::int64_t first_dense, shared_experts;
  double weight_scale;
};

// Latent attention and the blocks of DeepSeek-V2 and V3.
void deepseek(ConfigLink& c, const LatentDefaults& defaults) {
  transformer(c, 1e4);
  c.theirs("attention_bias", false);
  c.theirs("mlp_bias", false);
  c.theirs("moe_layer_freq", 1);
  // Widths that follow from the others, and what only training or serving reads.
  c.besides({"head_dim", "qk_head_dim", "ep_size", "num_nextn_predict_layers", "seq_aux", "aux_loss_alpha"});
  if (c.reading()) {
    // The inner norms of latent attention have this one in transformers, whatever the others have.
    const Theirs eps = c.take("rms_norm_eps");
    if (eps.is_number() && eps.get<double>() != 1e-6) {
      c.refuse(
          fmt::format("rms_norm_eps = {}: latent attention has 1e-06 in its own norms, and one value serves all "
                      "norms here",
                      eps.dump()));
    }
    c.set("model.rope_interleaved", "true");
  } else {
    if (c.our_number("model.norm_eps") != 1e-6) {
      c.refuse(fmt::format("model.norm_eps = {}", c.our_number("model.norm_eps")));
    }
    if (!c.our_flag("model.rope_interleaved")) {
      c.refuse("model.rope_interleaved = false");
    }
  }
  c.ours("model.attention", R"("latent")");
  c.integer("q_lora_rank", "model.q_lora_rank", c.reading() && !c.says("q_lora_rank") ? 1536 : 0);
  if (!c.reading() && c.our_integer("model.q_lora_rank") == 0) {
    c.put("q_lora_rank", Theirs());  // transformers takes a 0 for a width
  }
  c.integer("kv_lora_rank", "model.kv_lora_rank");
  c.integer("qk_nope_head_dim", "model.qk_nope_head_dim");
  c.integer("qk_rope_head_dim", "model.qk_rope_head_dim");
  c.integer("v_head_dim", "model.v_head_dim");
  c.integer("intermediate_size", "model.d_ff");
  c.integer("moe_intermediate_size", "moe.d_expert");
  integer_by_class(c, "first_k_dense_replace", "moe.first_dense", defaults.first_dense);
  c.ours("moe.every", "1");
  routed(c, "n_routed_experts");
  integer_by_class(c, "n_shared_experts", "moe.shared_experts", defaults.shared_experts);
  c.number("routed_scaling_factor", "moe.weight_scale",
           c.reading() && c.says("routed_scaling_factor") ? std::nullopt : std::optional(defaults.weight_scale));
}

void deepseek_v3(ConfigLink& c) {
  deepseek(c, {.first_dense = 3, .shared_experts = 1, .weight_scale = 2.5});
  c.theirs("rope_interleave", true);
  c.theirs("scoring_func", "sigmoid");
  c.theirs("topk_method", "noaux_tc");
  c.flag("norm_topk_prob", "moe.normalize_weights", true);
  integer_by_class(c, "n_group", "moe.expert_groups", 8);
  integer_by_class(c, "topk_group", "moe.groups_per_token", 4);
  c.ours("moe.group_score", R"("top2_sum")");
  bias_gate(c);
}

// Greedy, or by groups of experts, of which the greatest probability counts.
void deepseek_v2(ConfigLink& c) {
  deepseek(c, {.first_dense = 0, .shared_experts = 2, .weight_scale = 1});
  c.theirs("scoring_func", "softmax");
  softmax_gate(c);
  trained_by_deepseek(c, 0.001);
  c.theirs("norm_topk_prob", false);
  c.ours("moe.normalize_weights", "false");
  if (!c.reading()) {
    const std::int64_t groups = c.our_integer("moe.expert_groups");
    c.put("topk_method", groups > 1 ? "group_limited_greedy" : "greedy");
    c.put("n_group", groups);
    c.put("topk_group", c.our_integer("moe.groups_per_token"));
    if (groups > 1 && c.our_text("moe.group_score") != "max") {
      c.refuse(fmt::format("moe.group_score = \"{}\"", c.our_text("moe.group_score")));
    }
    return;
  }
  const Theirs method = c.take("topk_method");
  if (method == "group_limited_greedy") {
    c.integer("n_group", "moe.expert_groups");
    c.integer("topk_group", "moe.groups_per_token");
    c.set("moe.group_score", R"("max")");
  } else if (method.is_null() || method == "greedy") {
    c.besides({"n_group", "topk_group"});  // a greedy gate does not read them
  } else {
    c.refuse(fmt::format("topk_method = {}: greedy and group_limited_greedy are known", method.dump()));
  }
}

}  // namespace

std::span<const Family> families() {
  static const std::vector<Family> all = {
      {"mixtral", "MixtralForCausalLM", MoeNames::mixtral, "", mixtral},
      {"mistral", "MistralForCausalLM", MoeNames::none, "", mistral},
      {"olmoe", "OlmoeForCausalLM", MoeNames::mlp, "", olmoe},
      {"qwen3_moe", "Qwen3MoeForCausalLM", MoeNames::mlp, "", qwen3_moe},
      {"qwen2_moe", "Qwen2MoeForCausalLM", MoeNames::mlp, "shared_expert", qwen2_moe},
      {"deepseek_v3", "DeepseekV3ForCausalLM", MoeNames::mlp, "shared_experts", deepseek_v3,
       ".gate.e_score_correction_bias", false, "num_nextn_predict_layers"},
      {"deepseek_v2", "DeepseekV2ForCausalLM", MoeNames::mlp, "shared_experts", deepseek_v2},
      {"glm4_moe", "Glm4MoeForCausalLM", MoeNames::mlp, "shared_experts", glm4_moe, ".gate.e_score_correction_bias",
       false, "num_nextn_predict_layers"},
      {"dots1", "Dots1ForCausalLM", MoeNames::mlp, "shared_experts", dots1},
      {"minimax_m2", "MiniMaxM2ForCausalLM", MoeNames::mixtral, "", minimax_m2, ".e_score_correction_bias"},
      {"ernie4_5_moe", "Ernie4_5_MoeForCausalLM", MoeNames::mlp, "shared_experts", ernie4_5_moe,
       ".moe_statics.e_score_correction_bias", true},
      {"gpt_oss", "GptOssForCausalLM", MoeNames::gpt_oss, "", gpt_oss},
      {"qwen3", "Qwen3ForCausalLM", MoeNames::none, "", qwen3},
      {"qwen2", "Qwen2ForCausalLM", MoeNames::none, "", qwen2},
      {"llama", "LlamaForCausalLM", MoeNames::none, "", llama},
  };
  return all;
}

const Family* find_family(const std::string& model_type) {
  const std::span<const Family> all = families();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Family& f) { return f.model_type == model_type; });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace orthant
