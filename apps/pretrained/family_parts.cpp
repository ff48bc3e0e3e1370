#include "apps/pretrained/family_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace orthant::family_parts {

using Theirs = ConfigLink::Theirs;

void transformer(ConfigLink& c, const Common& common) {
  c.besides({"architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "use_cache", "auto_map",
             "_name_or_path", "bos_token_id", "eos_token_id", "pad_token_id", "max_position_embeddings",
             "output_attentions", "output_hidden_states", "return_dict", "pretraining_tp"});
  c.integer("vocab_size", "model.vocab_size");
  c.integer("hidden_size", "model.d_model");
  c.integer("num_hidden_layers", "model.layers");
  c.integer("num_attention_heads", "model.heads");
  c.integer("num_key_value_heads", "model.kv_heads", 0);
  c.number("rms_norm_eps", "model.norm_eps");
  c.ours("model.norm", common.norm);
  c.ours("model.positions", R"("rotary")");
  c.theirs(common.act_key, common.act);
  c.ours("model.activation", common.activation);
  c.flag("tie_word_embeddings", "model.tie_embeddings", common.tied);
  c.theirs("attention_dropout", 0.0);
  c.number("initializer_range", "model.init_std", 0.02);
  link_rope(c, common.theta, common.rope);
}

void head_dim(ConfigLink& c) {
  c.integer("head_dim", "model.head_dim", 0);
}

void no_head_dim(ConfigLink& c) {
  if (!c.reading() &&
      c.our_integer("model.head_dim") * c.our_integer("model.heads") != c.our_integer("model.d_model")) {
    c.refuse(fmt::format("model.head_dim = {}", c.our_integer("model.head_dim")));
  }
}

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

bool window_by_layer(ConfigLink& c, std::int64_t every_missing, std::int64_t width_missing) {
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
    return width > 0;
  }
  const Theirs said = c.take("layer_types"), layers = c.take("num_hidden_layers");
  const std::int64_t count = layers.is_number_unsigned() && layers < 1 << 16 ? layers.get<std::int64_t>() : 0;
  Theirs types = said;
  if (said.is_null()) {
    types = Theirs::array();
    for (std::int64_t i = 0; i < count; ++i) {
      types.push_back(type_of((i + 1) % every_missing == 0));
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
    integer_by_class(c, "sliding_window", "model.sliding_window", width_missing);
    c.set("model.full_attention_every", std::to_string(first < count ? first + 1 : 0));
  }
  return !all_full;
}

void dense(ConfigLink& c) {
  c.integer("intermediate_size", "model.d_ff");
  c.ours("moe.experts", "0");
}

namespace {

// What products of decimals have behind their last digit is left out, so that an export writes what was imported.
double rounded(double value) {
  return std::stod(fmt::format("{:.12g}", value));
}

std::string number_text(double value) {
  const std::string text = fmt::format("{:.12g}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;  // an integer is no number of TOML's
}

double number_in(ConfigLink& c, const char* key, double missing) {
  const ConfigLink::Theirs value = c.take(key);
  if (value.is_null()) {
    return missing;
  }
  if (!value.is_number() || !(value.get<double>() >= 0)) {
    c.refuse(fmt::format("{} = {}: a number of at least 0 was expected", key, value.dump()));
    return missing;
  }
  return value.get<double>();
}

std::int64_t routed_layers(ConfigLink& c) {
  const auto ours = [&](const char* key, std::int64_t otherwise) {
    return c.reading() ? c.stated(key, otherwise) : c.our_integer(key);
  };
  const std::int64_t every = std::max<std::int64_t>(ours("moe.every", 1), 1), first = ours("moe.first_dense", 0);
  std::int64_t count = 0;
  for (std::int64_t i = std::max<std::int64_t>(first, 0); i < std::min<std::int64_t>(ours("model.layers", 0), 1 << 20);
       ++i) {
    count += (i + 1) % every == 0 ? 1 : 0;
  }
  return count;
}

}  // namespace

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
  balanced_by_biases(c);
  if (!c.reading()) {
    c.put("router_aux_loss_coef", c.our_number("moe.aux_loss"));
  }
}

void trained_by_transformers(ConfigLink& c, double missing) {
  if (!c.reading()) {
    const double layers = static_cast<double>(routed_layers(c)), k = static_cast<double>(c.our_integer("moe.top_k"));
    c.put("router_aux_loss_coef", rounded(c.our_number("moe.aux_loss") * layers / k));
    return;
  }
  const double coefficient = number_in(c, "router_aux_loss_coef", missing);
  const double layers = static_cast<double>(std::max<std::int64_t>(routed_layers(c), 1));
  const double k = static_cast<double>(c.stated("moe.top_k", 1));
  c.set("moe.aux_loss", number_text(rounded(coefficient * k / layers)));
}

void trained_by_deepseek(ConfigLink& c, double missing) {
  if (!c.reading()) {
    c.put("aux_loss_alpha", c.our_number("moe.aux_loss"));
    c.put("seq_aux", c.our_text("moe.balance_over") == "group");
    return;
  }
  c.set("moe.aux_loss", number_text(number_in(c, "aux_loss_alpha", missing)));
  c.besides({"seq_aux"});
}

void balanced_by_biases(ConfigLink& c) {
  if (c.reading()) {
    c.set("moe.aux_loss", "0.0");
    c.set("moe.bias_update_rate", "0.0");
  }
}

void integer_by_class(ConfigLink& c, const char* theirs, const char* ours, std::int64_t missing) {
  const bool said = c.reading() && c.says(theirs);
  c.integer(theirs, ours, said ? std::nullopt : std::optional(missing));
}

}  // namespace orthant::family_parts
