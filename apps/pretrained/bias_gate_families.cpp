// Families with a gate as DeepSeek-V3's and attention of their own: GLM-4.5, dots.llm1, MiniMax-M2, ERNIE 4.5.
#include <fmt/format.h>

#include "apps/pretrained/family_parts.h"

namespace orthant::family_parts {
namespace {

using Theirs = ConfigLink::Theirs;

// Shared experts, dense blocks before the routed ones, groups of experts: as in DeepSeek-V3.
struct LayerDefaults {
  std::int64_t first_dense, shared_experts;
  bool normalize;
};

void routed_layers(ConfigLink& c, const LayerDefaults& missing) {
  c.integer("intermediate_size", "model.d_ff");
  c.integer("moe_intermediate_size", "moe.d_expert");
  routed(c, "n_routed_experts");
  c.ours("moe.every", "1");
  integer_by_class(c, "first_k_dense_replace", "moe.first_dense", missing.first_dense);
  integer_by_class(c, "n_shared_experts", "moe.shared_experts", missing.shared_experts);
  c.number("routed_scaling_factor", "moe.weight_scale", 1.0);
  c.flag("norm_topk_prob", "moe.normalize_weights", missing.normalize);
  integer_by_class(c, "n_group", "moe.expert_groups", 1);
  integer_by_class(c, "topk_group", "moe.groups_per_token", 1);
  c.ours("moe.group_score", R"("top2_sum")");
  bias_gate(c);
  if (!c.reading() && c.our_integer("moe.shared_experts") == 0) {
    c.refuse("moe.shared_experts = 0");  // the classes have a shared one always, and would make one of no width
  }
}

// As Qwen's, but a window alone says that it is used: by the layers from max_window_layers on, or by layer_types.
void full_attention(ConfigLink& c) {
  c.besides({"use_sliding_window"});  // the class has no such key
  if (!c.reading()) {
    c.put("sliding_window", Theirs());
    return;
  }
  const bool said = c.says("sliding_window"), first_said = c.says("max_window_layers");
  const Theirs window = c.take("sliding_window"), first = c.take("max_window_layers"), types = c.take("layer_types"),
               layers = c.take("num_hidden_layers");
  if (types.is_array()) {
    for (const Theirs& type : types) {
      if (type != "full_attention") {
        c.refuse(fmt::format("layer_types holds {}: only \"full_attention\" can be computed here", type.dump()));
        return;
      }
    }
    return;
  }
  constexpr std::int64_t class_first = 62;
  const Theirs from = first_said ? first : Theirs(class_first);
  const bool none =
      (said && window.is_null()) || (from.is_number_integer() && layers.is_number_integer() && from >= layers);
  if (!none) {
    c.refuse(fmt::format("sliding_window = {} from layer {} on: only full attention can be computed here",
                         said ? window.dump() : "4096", from.dump()));
  }
}

}  // namespace

// GLM-4.5, 4.6 and 4.7, and Air.
void glm4_moe(ConfigLink& c) {
  static constexpr PartialRotary part{.missing = 0.5};
  transformer(c, {.rope = {.part = &part}});
  head_dim(c);
  c.flag("attention_bias", "model.biases", false);
  c.ours("model.output_bias", "false");
  c.flag("use_qk_norm", "model.qk_norm", false);
  c.ours("model.qk_norm_over", R"("head")");
  c.besides({"num_nextn_predict_layers", "num_mtp_layers", "scoring_func", "topk_method"});  // the class has one gate
  routed_layers(c, {.first_dense = 1, .shared_experts = 1, .normalize = true});
}

void dots1(ConfigLink& c) {
  transformer(c, {});
  head_dim(c);
  attention_bias(c);
  full_attention(c);
  c.ours("model.qk_norm", "true");
  c.ours("model.qk_norm_over", R"("head")");
  // The class has one gate, whatever they say, and its training is none of ours.
  c.besides({"scoring_func", "topk_method", "moe_layer_freq", "ep_size", "seq_aux", "aux_loss_alpha"});
  routed_layers(c, {.first_dense = 0, .shared_experts = 0, .normalize = false});
}

// Names as Mixtral's, but for the bias of the gate.
void minimax_m2(ConfigLink& c) {
  static constexpr PartialRotary part{.missing = 1, .channels_key = "rotary_dim", .head_dim = 128};
  transformer(c, {.theta = 5e6, .rope = {.part = &part}});
  c.integer("head_dim", "model.head_dim", 128);
  c.ours("model.biases", "false");
  c.ours("model.output_bias", "false");
  c.theirs("use_qk_norm", true);
  c.theirs("qk_norm_type", "per_layer");
  c.ours("model.qk_norm", "true");
  c.ours("model.qk_norm_over", R"("all")");
  c.theirs("scoring_func", "sigmoid");
  c.theirs("use_routing_bias", true);
  c.theirs("shared_intermediate_size", 0);
  // The block that predicts further tokens, what is fixed in the class, and the width of dense blocks: it has none.
  c.besides({"use_mtp", "num_mtp_modules", "mtp_transformer_layers", "attn_type_list", "max_model_len",
             "layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta",
             "shared_moe_mode", "mlp_intermediate_size"});
  c.integer("intermediate_size", "moe.d_expert");
  routed(c, "num_local_experts", "num_experts");
  c.ours("moe.every", "1");
  c.ours("moe.normalize_weights", "true");
  bias_gate(c);
  if (!c.reading()) {
    return;
  }
  c.theirs("sliding_window", Theirs());  // published, though the class has no such key
  c.theirs("attention_bias", false);
  const Theirs types = c.take("attn_type_list");
  for (const Theirs& type : types.is_array() ? types : Theirs::array()) {
    if (type != 1) {
      c.refuse(fmt::format("attn_type_list holds {}: only full attention, 1, can be computed here", type.dump()));
      return;
    }
  }
}

// A softmax instead of sigmoids; neighbouring channels are rotated.
void ernie4_5_moe(ConfigLink& c) {
  transformer(c, {.theta = 5e5, .tied = true});
  head_dim(c);
  c.ours("model.rope_interleaved", "true");
  c.theirs("use_bias", false);
  c.ours("model.biases", "false");
  c.ours("model.output_bias", "false");
  c.integer("intermediate_size", "model.d_ff");
  c.integer("moe_intermediate_size", "moe.d_expert");
  c.integer("moe_num_experts", "moe.experts");
  c.integer("moe_k", "moe.top_k");
  integer_by_class(c, "moe_num_shared_experts", "moe.shared_experts", 2);
  integer_by_class(c, "moe_layer_start_index", "moe.first_dense", 1);
  integer_by_class(c, "moe_layer_interval", "moe.every", 1);
  c.theirs("moe_norm_min", 1e-12);
  c.theirs("moe_gate", "topk");
  c.theirs("moe_use_aux_free", true);
  // What only training reads, and the block that predicts a second token.
  c.besides({"output_router_logits", "router_aux_loss_coef", "moe_capacity", "num_nextn_predict_layers",
             "num_mtp_layers", "_attn_implementation"});
  c.theirs("use_rmsnorm", true);
  c.ours("moe.normalize_weights", "true");
  c.ours("moe.router", R"("bias")");
  c.ours("moe.score", R"("softmax")");
  balanced_by_biases(c);
  if (!c.reading()) {
    c.put("moe_layer_end_index", c.our_integer("model.layers") - 1);
    if (c.our_integer("moe.experts") == 0) {
      c.refuse("moe.experts = 0");
    }
    return;
  }
  const Theirs end = c.take("moe_layer_end_index"), layers = c.take("num_hidden_layers");
  if (!end.is_null() && end != -1 &&
      !(end.is_number_integer() && layers.is_number_integer() &&
        end.get<std::int64_t>() == layers.get<std::int64_t>() - 1)) {
    c.refuse(fmt::format("moe_layer_end_index = {}: only the last layer can be the last one with experts", end.dump()));
  }
}

// Ling and Ring 2.0.
void bailing_moe_v2(ConfigLink& c) {
  static constexpr PartialRotary part{.missing = 1, .channels_key = "rotary_dim"};
  transformer(c, {.theta = 6e5, .rope = {.part = &part}});
  head_dim(c);
  c.theirs("use_qkv_bias", false);
  c.theirs("use_bias", false);
  c.ours("model.biases", "false");
  c.ours("model.output_bias", "false");
  c.theirs("use_qk_norm", true);
  c.ours("model.qk_norm", "true");
  c.ours("model.qk_norm_over", R"("head")");
  c.integer("intermediate_size", "model.d_ff");
  c.integer("moe_intermediate_size", "moe.d_expert");
  routed(c, "num_experts");
  c.ours("moe.every", "1");
  integer_by_class(c, "first_k_dense_replace", "moe.first_dense", 1);
  integer_by_class(c, "num_shared_experts", "moe.shared_experts", 1);
  c.number("routed_scaling_factor", "moe.weight_scale", 1.0);
  c.theirs("norm_topk_prob", true);
  c.ours("moe.normalize_weights", "true");
  integer_by_class(c, "n_group", "moe.expert_groups", 8);
  integer_by_class(c, "topk_group", "moe.groups_per_token", 4);
  c.ours("moe.group_score", R"("top2_sum")");
  c.theirs("score_function", "sigmoid");
  c.theirs("moe_router_enable_expert_bias", true);
  bias_gate(c);
  if (!c.reading()) {
    if (c.our_integer("moe.shared_experts") == 0) {
      c.refuse("moe.shared_experts = 0");
    }
    c.put("auto_map", {{"AutoConfig", "configuration_bailing_moe_v2.BailingMoeV2Config"},
                       {"AutoModelForCausalLM", "modeling_bailing_moe_v2.BailingMoeV2ForCausalLM"}});
    return;
  }
  if (!c.says("score_function")) {
    c.refuse("score_function is missing: \"sigmoid\" was expected, as in Ling 2.0");
  }
  c.theirs("scoring_func", "sigmoid");
  c.theirs("topk_method", "noaux_tc");
  c.theirs("embedding_dropout", 0.0);
  c.theirs("output_dropout", 0.0);
  c.theirs("norm_head", false);
  c.theirs("norm_softmax", false);
  c.theirs("use_rmsnorm", true);
  // What only training reads, and the block that predicts a second token.
  c.besides({"max_window_layers", "mtp_loss_scaling_factor", "num_nextn_predict_layers", "router_dtype", "seq_aux",
             "group_norm_size"});
  const Theirs width = c.take("moe_shared_expert_intermediate_size"), one = c.take("moe_intermediate_size"),
               shared = c.take("num_shared_experts");
  const std::int64_t count = shared.is_number_integer() ? shared.get<std::int64_t>() : 1;
  if (!width.is_null() && one.is_number_integer() && width != one.get<std::int64_t>() * count) {
    c.refuse(fmt::format("moe_shared_expert_intermediate_size = {}: {} times moe_intermediate_size was expected",
                         width.dump(), count));
  }
}

}  // namespace orthant::family_parts
