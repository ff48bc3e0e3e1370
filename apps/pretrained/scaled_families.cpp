// Families that multiply what passes through them by numbers of their configuration: Granite, Gemma 2 and 3.
#include <fmt/format.h>

#include <cmath>

#include "apps/pretrained/family_parts.h"
#include "core/config/value_text.h"

namespace orthant::family_parts {
namespace {

using Theirs = ConfigLink::Theirs;

void granite_attention(ConfigLink& c) {
  transformer(c, {});
  head_dim(c);
  attention_bias(c);
  c.number("embedding_multiplier", "model.embedding_scale", 1);
  c.number("residual_multiplier", "model.residual_scale", 1);
  c.number("logits_scaling", "model.logit_divisor", 1);
  c.number("attention_multiplier", "model.attention_scale", 1);
  if (!c.reading() && c.our_number("model.attention_scale") == 0) {
    c.put("attention_multiplier", 1 / std::sqrt(static_cast<double>(c.our_integer("model.head_dim"))));
  }
}

// Embeddings are multiplied by the root of their width.
void root_of_width(ConfigLink& c) {
  if (c.reading()) {
    const Theirs width = c.take("hidden_size");
    const double root = width.is_number() ? std::sqrt(width.get<double>()) : 1;  // refused by its own key
    c.set("model.embedding_scale", toml_text(Value(root)));
    return;
  }
  const double scale = c.our_number("model.embedding_scale"),
               width = static_cast<double>(c.our_integer("model.d_model"));
  if (std::abs(scale * scale - width) > 1e-6 * width) {
    c.refuse(fmt::format("model.embedding_scale = {}", scale));
  }
}

// Products of queries and keys are divided by the root of this number.
void score_divisor(ConfigLink& c, std::int64_t missing) {
  constexpr const char* key = "query_pre_attn_scalar";
  if (c.reading()) {
    const Theirs said = c.says(key) ? c.take(key) : Theirs(missing), width = c.take("head_dim");
    if (!said.is_number() || !(said.get<double>() > 0)) {
      c.refuse(fmt::format("{} = {}: a number above 0 was expected", key, said.dump()));
      return;
    }
    c.set("model.attention_scale", said == width ? "0.0" : toml_text(Value(1 / std::sqrt(said.get<double>()))));
    return;
  }
  const double scale = c.our_number("model.attention_scale");
  const double divisor = scale > 0 ? 1 / (scale * scale) : static_cast<double>(c.our_integer("model.head_dim"));
  const double whole = std::round(divisor);
  if (std::abs(divisor - whole) > 1e-6 * divisor) {
    c.refuse(fmt::format("model.attention_scale = {}", scale));
  }
  c.put(key, static_cast<std::int64_t>(whole));
}

// A number, or null for none. missing: where the file does not say it.
void softcap(ConfigLink& c, const char* theirs, const char* ours, double missing) {
  if (c.reading()) {
    const Theirs said = c.says(theirs) ? c.take(theirs) : Theirs(missing);
    if (said.is_null() || (said.is_number() && (said > 0 || !c.says(theirs)))) {
      c.set(ours, toml_text(Value(said.is_null() ? 0.0 : said.get<double>())));
    } else {
      c.refuse(fmt::format("{} = {}: a number above 0 or null was expected", theirs, said.dump()));
    }
    return;
  }
  const double cap = c.our_number(ours);
  c.put(theirs, cap > 0 ? Theirs(cap) : Theirs());
}

// Where the defaults of both classes are the same.
void gemma(ConfigLink& c, double theta, const RopeKeys& rope) {
  transformer(c, {.theta = theta,
                  .activation = R"("geglu")",
                  .rope = rope,
                  .tied = true,
                  .act_key = "hidden_activation",
                  .act = "gelu_pytorch_tanh"});
  if (c.reading()) {
    c.besides({"hidden_act", "cache_implementation", "_sliding_window_pattern"});  // layer_types says it
    if (!c.says("num_key_value_heads")) {
      c.refuse("num_key_value_heads is missing: a whole number was expected");
    }
  }
  integer_by_class(c, "head_dim", "model.head_dim", 256);
  attention_bias(c);
  c.theirs("use_bidirectional_attention", false);
  root_of_width(c);
  score_divisor(c, 256);
  c.ours("model.norm_place", R"("both")");
  c.ours("model.norm_plus_one", "true");
  dense(c);
}

}  // namespace

void granite(ConfigLink& c) {
  granite_attention(c);
  c.theirs("mlp_bias", false);
  dense(c);
}

void granitemoe(ConfigLink& c) {
  granite_attention(c);
  c.integer("intermediate_size", "moe.d_expert");
  routed(c, "num_local_experts", "num_experts");
  softmax_gate(c);
  c.ours("moe.normalize_weights", "true");
  c.ours("moe.every", "1");
  trained_by_transformers(c, 0.001);
}

void gemma2(ConfigLink& c) {
  gemma(c, 1e4, {});
  softcap(c, "attn_logit_softcapping", "model.attention_softcap", 50);
  softcap(c, "final_logit_softcapping", "model.logit_softcap", 30);
  window_by_layer(c, 2, 4096);
}

void gemma3_text(ConfigLink& c) {
  gemma(c, 1e6, {.layers = true});
  c.ours("model.qk_norm", "true");
  c.ours("model.qk_norm_over", R"("head")");
  c.theirs("attn_logit_softcapping", Theirs());
  softcap(c, "final_logit_softcapping", "model.logit_softcap", 0);
  std::int64_t every = 6;
  if (c.reading()) {
    const Theirs pattern = c.take("sliding_window_pattern");
    if (pattern.is_number_integer() && pattern > 0 && pattern < 1 << 16) {
      every = pattern.get<std::int64_t>();
    } else if (!pattern.is_null()) {
      c.refuse(fmt::format("sliding_window_pattern = {}: a whole number above 0 was expected", pattern.dump()));
    }
  }
  const bool slides = window_by_layer(c, every, 4096);
  link_local_rope(c, slides, 1e4);
}

}  // namespace orthant::family_parts
