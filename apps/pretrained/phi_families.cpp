// Phi-3, Phi-3.5-MoE and Phi-4-mini.
#include "apps/pretrained/family_parts.h"

namespace orthant::family_parts {

using Theirs = ConfigLink::Theirs;

void phi3(ConfigLink& c) {
  static constexpr PartialRotary part{};
  transformer(c, {.rope = {.part = &part, .phi3 = true}});
  head_dim(c);
  c.ours("model.biases", "false");
  window(c, Theirs());
  for (const char* dropped : {"resid_pdrop", "embd_pdrop"}) {
    c.theirs(dropped, 0.0);
  }
  if (c.reading()) {  // published, though the class has no such keys
    for (const char* flag : {"attention_bias", "mlp_bias", "lm_head_bias"}) {
      c.theirs(flag, false);
    }
    c.theirs("full_attn_mod", 1);
    c.theirs("interpolate_factor", 1);
  }
  dense(c);
}

void phimoe(ConfigLink& c) {
  transformer(c, {.theta = 1e6, .rope = {.mscales = true}, .norm = R"("layernorm")"});
  head_dim(c);
  attention_bias(c);
  window(c, Theirs());
  c.flag("lm_head_bias", "model.head_bias", false);
  c.integer("intermediate_size", "moe.d_expert");
  routed(c, "num_local_experts", "num_experts");
  c.number("router_jitter_noise", "moe.sparsemixer_width", 0.01);
  c.besides({"input_jitter_noise"});  // of training
  if (c.reading()) {
    c.theirs("hidden_dropout", 0.0);  // published, though the class has no such key
  }
  c.ours("moe.router", R"("sparsemixer")");
  c.ours("moe.score", R"("softmax")");
  c.ours("moe.normalize_weights", "false");
  c.ours("moe.every", "1");
  trained_by_transformers(c, 0.001);
}

}  // namespace orthant::family_parts
