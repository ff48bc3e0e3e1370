#include <fmt/format.h>

#include <algorithm>

#include "apps/pretrained/family_parts.h"

namespace orthant::family_parts {
namespace {

using Theirs = ConfigLink::Theirs;

// A number that may be said once, or for each layer: here the same for all.
Theirs of_all_layers(ConfigLink& c, const char* key) {
  const Theirs said = c.take(key);
  if (!said.is_array()) {
    return said;
  }
  const bool same =
      !said.empty() && std::all_of(said.begin(), said.end(), [&](const Theirs& x) { return x == said[0]; });
  if (!same) {
    c.refuse(fmt::format("{} = {}: one number for all layers was expected", key, said.dump()));
  }
  return same ? said[0] : Theirs();
}

void whole(ConfigLink& c, const char* theirs, const char* ours) {
  if (!c.reading()) {
    c.put(theirs, c.our_integer(ours));
    return;
  }
  const Theirs said = of_all_layers(c, theirs);
  if (said.is_number_integer() && said > 0 && said <= INT32_MAX) {
    c.set(ours, said.dump());
  } else {
    c.refuse(fmt::format("{} = {}: a whole number was expected", theirs, c.take(theirs).dump()));
  }
}

// What the class has no keys for, though it is published: this one it computes.
void published(ConfigLink& c) {
  const Theirs width = c.take("intermediate_size");
  for (const auto& [key, value] : {std::pair<const char*, Theirs>("num_shared_expert", 1),
                                   std::pair<const char*, Theirs>("moe_intermediate_size", width)}) {
    const Theirs said = of_all_layers(c, key);
    if (!said.is_null() && said != value) {
      c.refuse(fmt::format("{} = {}: only {} can be computed here", key, said.dump(), value.dump()));
    }
  }
  c.theirs("use_mixed_mlp_moe", true);
  c.theirs("moe_layer_num_skipped", 0);
  c.theirs("norm_topk_prob", true);
  c.theirs("use_qk_norm", true);
  c.theirs("use_cla", false);
  c.theirs("mlp_bias", false);
  c.theirs("norm_type", "rms");
  c.theirs("num_experts_per_tok", Theirs());
  c.theirs("hidden_dropout", 0.0);
  const Theirs again = c.take("attention_head_dim"), head = c.take("head_dim");
  if (!again.is_null() && !head.is_null() && again != head) {
    c.refuse(fmt::format("attention_head_dim = {}, but head_dim = {}", again.dump(), head.dump()));
  }
  c.besides({"cla_share_factor",
             "eod_token_id",
             "sep_token_id",
             "im_start_id",
             "im_end_id",
             "im_newline_id",
             "image_token_id",
             "text_start_id",
             "text_end_id",
             "mask_init_id",
             "pad_id",
             "moe_drop_tokens",
             "moe_random_routing_dropped_token",
             "capacity_factor",
             "add_classification_head",
             "class_num",
             "pool_type",
             "org_vocab_size",
             "use_rotary_pos_emb",
             "routed_scaling_factor",
             "group_limited_greedy"});
}

}  // namespace

// Every token visits a shared expert of the experts' width; heads are normalised after they are rotated.
void hunyuan_v1_moe(ConfigLink& c) {
  transformer(c, {.rope = {.alpha = true}});
  head_dim(c);
  attention_bias(c);
  c.ours("model.qk_norm", "true");
  c.ours("model.qk_norm_over", R"("head")");
  c.ours("model.qk_norm_rotated", "true");
  whole(c, "num_experts", "moe.experts");
  whole(c, "moe_topk", "moe.top_k");
  c.integer("intermediate_size", "moe.d_expert");
  c.ours("moe.shared_experts", "1");
  c.besides({"output_router_logits"});
  softmax_gate(c);
  c.ours("moe.normalize_weights", "true");
  c.ours("moe.every", "1");
  trained_by_transformers(c, 0);
  if (c.reading()) {
    published(c);
    return;
  }
  if (c.our_integer("moe.experts") == 0) {
    c.refuse("moe.experts = 0");
  }
  if (c.our_integer("moe.d_shared") != c.our_integer("moe.d_expert")) {
    c.refuse(fmt::format("moe.d_shared = {}", c.our_integer("moe.d_shared")));
  }
}

}  // namespace orthant::family_parts
