// Families with latent attention: DeepSeek-V2 and V3, Kimi K2 by its other name, and GLM-4.7-Flash.
#include <fmt/format.h>

#include "apps/pretrained/family_parts.h"

namespace orthant::family_parts {
namespace {

using Theirs = ConfigLink::Theirs;

// What the class of a DeepSeek takes for a key that is missing. Null is something else: no query rank, or refused.
struct LatentDefaults {
  std::int64_t first_dense, shared_experts;
  double weight_scale;
};

// Two latent norms of each block have this one in transformers, whatever the others have.
void inner_norms(ConfigLink& c) {
  constexpr double eps = 1e-6;
  if (c.reading()) {
    const Theirs stated = c.take("rms_norm_eps");
    c.set("model.latent_norm_eps", stated.is_number() && stated.get<double>() != eps ? "1e-06" : "0.0");
    return;
  }
  const double own = c.our_number("model.latent_norm_eps"), inner = own > 0 ? own : c.our_number("model.norm_eps");
  if (inner != eps) {
    c.refuse(fmt::format("model.{} = {}", own > 0 ? "latent_norm_eps" : "norm_eps", inner));
  }
}

void latent_attention(ConfigLink& c, std::int64_t query_rank_missing) {
  inner_norms(c);
  c.ours("model.rope_interleaved", "true");
  c.ours("model.attention", R"("latent")");
  c.integer("q_lora_rank", "model.q_lora_rank", c.reading() && !c.says("q_lora_rank") ? query_rank_missing : 0);
  if (!c.reading() && c.our_integer("model.q_lora_rank") == 0) {
    c.put("q_lora_rank", Theirs());  // transformers takes a 0 for a width
  }
  c.integer("kv_lora_rank", "model.kv_lora_rank");
  c.integer("qk_nope_head_dim", "model.qk_nope_head_dim");
  c.integer("qk_rope_head_dim", "model.qk_rope_head_dim");
  c.integer("v_head_dim", "model.v_head_dim");
}

// Latent attention and the blocks of DeepSeek-V2 and V3.
void deepseek(ConfigLink& c, const LatentDefaults& defaults) {
  transformer(c, {});
  c.theirs("attention_bias", false);
  c.theirs("mlp_bias", false);
  c.theirs("moe_layer_freq", 1);
  // Widths that follow from the others, and what only training or serving reads.
  c.besides({"head_dim", "qk_head_dim", "ep_size", "num_nextn_predict_layers", "seq_aux", "aux_loss_alpha"});
  latent_attention(c, 1536);
  c.integer("intermediate_size", "model.d_ff");
  c.integer("moe_intermediate_size", "moe.d_expert");
  integer_by_class(c, "first_k_dense_replace", "moe.first_dense", defaults.first_dense);
  c.ours("moe.every", "1");
  routed(c, "n_routed_experts");
  integer_by_class(c, "n_shared_experts", "moe.shared_experts", defaults.shared_experts);
  c.number("routed_scaling_factor", "moe.weight_scale",
           c.reading() && c.says("routed_scaling_factor") ? std::nullopt : std::optional(defaults.weight_scale));
}

// Which blocks are dense, by name. Here those can only be the first ones.
void dense_first(ConfigLink& c, std::int64_t missing) {
  if (!c.reading()) {
    const std::int64_t first = c.our_integer("moe.first_dense");
    Theirs types = Theirs::array();
    for (std::int64_t i = 0; i < c.our_integer("model.layers"); ++i) {
      types.push_back(i < first ? "dense" : "sparse");
    }
    c.put("mlp_layer_types", types);
    return;
  }
  const Theirs types = c.take("mlp_layer_types"), layers = c.take("num_hidden_layers"),
               published = c.take("first_k_dense_replace");
  std::int64_t first = missing;
  if (types.is_array()) {
    first = 0;
    while (first < static_cast<std::int64_t>(types.size()) && types[static_cast<std::size_t>(first)] == "dense") {
      ++first;
    }
    bool regular = layers == types.size();
    for (std::size_t i = static_cast<std::size_t>(first); i < types.size(); ++i) {
      regular = regular && types[i] == "sparse";
    }
    if (!regular) {
      c.refuse(
          fmt::format("mlp_layer_types = {}: \"dense\" in the first layers and \"sparse\" in the others was "
                      "expected, one for each of num_hidden_layers",
                      types.dump()));
    }
  } else if (!types.is_null()) {
    c.refuse(fmt::format("mlp_layer_types = {}: a list was expected", types.dump()));
  }
  if (!published.is_null() && published != first) {
    c.refuse(fmt::format("first_k_dense_replace = {}, but mlp_layer_types {} {}", published.dump(),
                         types.is_null() ? "is missing, which stands for" : "has", first));
  }
  c.set("moe.first_dense", std::to_string(first));
}

}  // namespace

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

// GLM-4.7-Flash.
void glm4_moe_lite(ConfigLink& c) {
  transformer(c, {});
  c.theirs("attention_bias", false);
  c.theirs("rope_interleave", true);
  c.theirs("partial_rotary_factor", 1.0);
  // Widths that follow from the others; the class has one gate, whatever they say.
  c.besides({"head_dim", "qk_head_dim", "num_nextn_predict_layers", "scoring_func", "topk_method"});
  latent_attention(c, 768);
  c.integer("intermediate_size", "model.d_ff");
  c.integer("moe_intermediate_size", "moe.d_expert");
  dense_first(c, 1);
  c.ours("moe.every", "1");
  routed(c, "n_routed_experts");
  integer_by_class(c, "n_shared_experts", "moe.shared_experts", 1);
  c.number("routed_scaling_factor", "moe.weight_scale",
           c.reading() && c.says("routed_scaling_factor") ? std::nullopt : std::optional(1.8));
  c.flag("norm_topk_prob", "moe.normalize_weights", true);
  integer_by_class(c, "n_group", "moe.expert_groups", 1);
  integer_by_class(c, "topk_group", "moe.groups_per_token", 1);
  c.ours("moe.group_score", R"("top2_sum")");
  bias_gate(c);
}

}  // namespace orthant::family_parts
