#include "core/pretrained/family_parts.h"

#include <fmt/format.h>

namespace orthant::family_parts {

using Theirs = ConfigLink::Theirs;

void transformer(ConfigLink& c, double theta, const char* activation, const PartialRotary* part, bool tied) {
  c.besides({"architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "use_cache", "auto_map",
             "_name_or_path", "bos_token_id", "eos_token_id", "pad_token_id", "max_position_embeddings",
             "output_attentions", "output_hidden_states", "return_dict", "pretraining_tp"});
  c.integer("vocab_size", "model.vocab_size");
  c.integer("hidden_size", "model.d_model");
  c.integer("num_hidden_layers", "model.layers");
  c.integer("num_attention_heads", "model.heads");
  c.integer("num_key_value_heads", "model.kv_heads", 0);
  c.number("rms_norm_eps", "model.norm_eps");
  c.ours("model.norm", R"("rmsnorm")");
  c.ours("model.positions", R"("rotary")");
  c.theirs("hidden_act", "silu");
  c.ours("model.activation", activation);
  c.flag("tie_word_embeddings", "model.tie_embeddings", tied);
  c.theirs("attention_dropout", 0.0);
  c.number("initializer_range", "model.init_std", 0.02);
  link_rope(c, theta, part);
}

void attention_bias(ConfigLink& c, bool missing) {
  c.flag("attention_bias", "model.biases", missing);
  if (c.reading()) {
    c.flag("attention_bias", "model.output_bias", missing);
  } else if (c.our_flag("model.biases") != c.our_flag("model.output_bias")) {
    c.refuse(fmt::format("model.output_bias = {}", c.our_flag("model.output_bias")));
  }
}

void routed(ConfigLink& c, const char* experts, const char* also) {
  c.besides({"output_router_logits", "router_aux_loss_coef", "router_jitter_noise"});
  const bool other = c.reading() && also != nullptr && !c.take(also).is_null();
  c.integer(other ? also : experts, "moe.experts");
  if (other && !c.take(experts).is_null() && c.take(experts) != c.take(also)) {
    c.refuse(fmt::format("{} = {}, but {} = {}", experts, c.take(experts).dump(), also, c.take(also).dump()));
  }
  c.integer("num_experts_per_tok", "moe.top_k");
  if (!c.reading()) {
    if (c.our_integer("moe.experts") == 0) {
      c.refuse("moe.experts = 0");
    }
    c.put("router_aux_loss_coef", c.our_number("moe.aux_loss"));
    c.put("output_router_logits", false);
  }
}

void softmax_gate(ConfigLink& c) {
  c.ours("moe.router", R"("topk")");
  c.ours("moe.score", R"("softmax")");
}

void bias_gate(ConfigLink& c) {
  c.ours("moe.router", R"("bias")");
  c.ours("moe.score", R"("sigmoid")");
}

void integer_by_class(ConfigLink& c, const char* theirs, const char* ours, std::int64_t missing) {
  const bool said = c.reading() && c.says(theirs);
  c.integer(theirs, ours, said ? std::nullopt : std::optional(missing));
}

}  // namespace orthant::family_parts
