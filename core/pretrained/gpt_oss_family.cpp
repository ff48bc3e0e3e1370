#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/pretrained/family_parts.h"

namespace orthant::family_parts {
namespace {

using Theirs = ConfigLink::Theirs;

// Blocks with the window and without it, named one by one. Here every n-th is without it.
void window_by_layer(ConfigLink& c) {
  const auto type_of = [](bool full) { return full ? "full_attention" : "sliding_attention"; };
  if (!c.reading()) {
    const std::int64_t width = c.our_integer("model.sliding_window"),
                       every = c.our_integer("model.full_attention_every");
    Theirs types = Theirs::array();
    for (std::int64_t i = 0; i < c.our_integer("model.layers"); ++i) {
      types.push_back(type_of(width == 0 || (every > 0 && (i + 1) % every == 0)));
    }
    c.put("layer_types", types);
    c.put("sliding_window", width > 0 ? Theirs(width) : Theirs());
    return;
  }
  const Theirs said = c.take("layer_types"), layers = c.take("num_hidden_layers");
  const std::int64_t count = layers.is_number_unsigned() && layers < 1 << 16 ? layers.get<std::int64_t>() : 0;
  Theirs types = said;
  if (said.is_null()) {
    types = Theirs::array();
    for (std::int64_t i = 0; i < count; ++i) {
      types.push_back(type_of(i % 2 == 1));
    }
  }
  const std::int64_t first = std::find(types.begin(), types.end(), Theirs("full_attention")) - types.begin();
  const bool all_full = types.is_array() && std::count(types.begin(), types.end(), Theirs("full_attention")) == count;
  bool regular = types.is_array() && static_cast<std::int64_t>(types.size()) == count;
  for (std::int64_t i = 0; regular && i < count; ++i) {
    regular = types[static_cast<std::size_t>(i)] == type_of(all_full || (i + 1) % (first + 1) == 0);
  }
  if (!regular) {
    c.refuse(
        fmt::format("layer_types = {}: \"sliding_attention\" with \"full_attention\" in every n-th layer was "
                    "expected, one for each of num_hidden_layers",
                    types.dump()));
  } else if (all_full) {
    c.besides({"sliding_window"});
  } else {
    integer_by_class(c, "sliding_window", "model.sliding_window", 128);
    c.set("model.full_attention_every", std::to_string(first < count ? first + 1 : 0));
  }
}

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
  transformer(c, 150000, R"("clamped_swiglu")");
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
  window_by_layer(c);
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
