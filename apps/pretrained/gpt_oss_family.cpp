#include <fmt/format.h>

#include <utility>

#include "apps/pretrained/family_parts.h"

namespace orthant::family_parts {
namespace {

using Theirs = ConfigLink::Theirs;

// rope_scaling says it again.
void initial_context(ConfigLink& c) {
  if (!c.reading()) {
    return;
  }
  const Theirs said = c.take("initial_context_length"), now = c.take("rope_parameters");
  const Theirs scaling = now.is_object() ? now : c.take("rope_scaling");
  const Theirs original = scaling.is_object() ? scaling.value("original_max_position_embeddings", Theirs()) : Theirs();
  if (!said.is_null() && !original.is_null() && said != original) {
    c.refuse(fmt::format("initial_context_length = {}, but rope_scaling.original_max_position_embeddings = {}",
                         said.dump(), original.dump()));
  }
}

}  // namespace

void gpt_oss(ConfigLink& c) {
  transformer(c, {.theta = 150000, .activation = R"("clamped_swiglu")"});
  initial_context(c);
  if (!c.reading() && c.our_text("model.rope_scaling") == "none") {
    // Its class takes YaRN where nothing is said, version 4 of transformers where rope_scaling says nothing.
    const Theirs unscaled = {{"rope_type", "default"}, {"rope_theta", c.our_number("model.rope_theta")}};
    c.put("rope_parameters", unscaled);
    c.put("rope_scaling", unscaled);
  } else if (c.reading() && c.take("rope_parameters").is_null() && c.take("rope_scaling").is_null()) {
    c.refuse("rope_scaling is missing: it is needed here, as its class takes YaRN for it");
  }
  if (c.reading() && !c.says("num_key_value_heads")) {
    c.refuse("num_key_value_heads is missing: a whole number was expected");
  }
  integer_by_class(c, "head_dim", "model.head_dim", 64);
  attention_bias(c, true);
  c.ours("model.attention_sinks", "true");
  window_by_layer(c, 2, 128);
  c.integer("intermediate_size", "moe.d_expert");
  routed(c, "num_local_experts", "num_experts");
  if (c.reading()) {
    const Theirs again = c.take("experts_per_token");
    if (!again.is_null() && again != c.take("num_experts_per_tok")) {
      c.refuse(fmt::format("experts_per_token = {}, but num_experts_per_tok = {}", again.dump(),
                           c.take("num_experts_per_tok").dump()));
    }
  }
  softmax_gate(c);
  c.ours("moe.normalize_weights", "true");
  c.ours("moe.every", "1");
  c.ours("moe.router_bias", "true");
  c.ours("moe.expert_bias", "true");
  for (const auto& [key, what] :
       {std::pair("swiglu_limit", "without a limit nothing is clamped, only 7.0 can be computed here"),
        std::pair("swiglu_alpha", "it says no slope, only 1.702 can be computed here")}) {
    if (c.reading() && c.says(key) && c.take(key).is_null()) {
      c.refuse(fmt::format("{} = null: {}", key, what));
    }
  }
  c.theirs("swiglu_limit", 7.0);
  c.theirs("swiglu_alpha", 1.702);
  trained_by_transformers(c, 0.9);
}

}  // namespace orthant::family_parts
