#include "families.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include <orthant/error.h>
#include <orthant/settings.h>

#include "chain.h"
#include "settings.h"

namespace orthant::encoder_decoder {
namespace {

constexpr std::int64_t missing = -1;

std::int64_t integer_or(FamilyKeys& k, const char* theirs, std::int64_t otherwise) {
  const std::optional<Value> value = k.take(theirs);
  return value.has_value() && std::holds_alternative<std::int64_t>(*value) ? std::get<std::int64_t>(*value) : otherwise;
}
std::string text_or(FamilyKeys& k, const char* theirs, const std::string& otherwise) {
  const std::optional<Value> value = k.take(theirs);
  return value.has_value() && std::holds_alternative<std::string>(*value) ? std::get<std::string>(*value) : otherwise;
}
std::optional<bool> flag_in(FamilyKeys& k, const char* theirs) {
  const std::optional<Value> value = k.take(theirs);
  return value.has_value() && std::holds_alternative<bool>(*value) ? std::optional(std::get<bool>(*value))
                                                                   : std::nullopt;
}

void sizes(FamilyKeys& k) {
  k.ours("model.kind", std::string("t5"));
  k.integer("vocab_size", "model.vocab_size");
  k.integer("d_model", "model.d_model");
  k.integer("d_kv", "model.head_dim", 64);
  k.integer("d_ff", "model.d_ff");
  k.integer("num_heads", "model.heads");
  k.integer("relative_attention_num_buckets", "model.relative_buckets", 32);
  k.integer("relative_attention_max_distance", "model.relative_distance", 128);
  k.number("layer_norm_epsilon", "model.norm_eps", 1e-6);
  k.integer("decoder_start_token_id", "model.start_token", 0);
  k.ours("model.norm", std::string("rmsnorm"));
  k.ours("model.attention_scale", 1.0);
  k.ours_besides({"model.source_length"});
  k.besides({"dropout_rate", "classifier_dropout", "initializer_factor", "use_cache", "is_encoder_decoder",
             "n_positions", "output_past", "gradient_checkpointing", "is_gated_act", "num_hidden_layers"});
  if (k.reading()) {
    const std::int64_t encoder = integer_or(k, "num_layers", missing);
    if (encoder < 1) {
      k.refuse("num_layers is missing: a whole number was expected");
      return;
    }
    k.set("model.encoder_layers", encoder);
    k.set("model.layers", integer_or(k, "num_decoder_layers", encoder));
    k.set("model.end_token", integer_or(k, "eos_token_id", 1));
    return;
  }
  if (const std::int64_t end = k.our_integer("model.end_token"); end >= 0) {
    k.put("eos_token_id", end);
  }
  const std::int64_t decoder = k.our_integer("model.layers"), written = k.our_integer("model.encoder_layers");
  k.put("num_layers", written == 0 ? decoder : written);
  k.put("num_decoder_layers", decoder);
}

// The head's matrix is the table of embeddings, and logits are then divided by the root of the width; or neither.
void head(FamilyKeys& k, std::optional<bool> tied) {
  if (k.reading()) {
    const bool is_tied = tied.value_or(true);
    k.set("model.tie_embeddings", is_tied);
    if (is_tied) {
      k.set("model.logit_divisor", std::sqrt(static_cast<double>(integer_or(k, "d_model", 1))));
    }
    return;
  }
  const bool is_tied = k.our_flag("model.tie_embeddings");
  const double divisor = k.our_number("model.logit_divisor");
  const double expected = is_tied ? std::sqrt(static_cast<double>(k.our_integer("model.d_model"))) : 1.0;
  if (std::abs(divisor - expected) > 1e-6 * expected) {
    k.refuse(
        fmt::format("model.logit_divisor = {}: {} with {} embeddings", divisor, expected, is_tied ? "tied" : "untied"));
  }
  k.put("tie_word_embeddings", is_tied);
}

// "relu", "gated-gelu": the function of the FFN. transformers' gelu_new is the one here.
const std::vector<std::pair<std::string, std::string>>& gated_functions() {
  static const std::vector<std::pair<std::string, std::string>> all = {
      {"gated-gelu", "geglu"}, {"gated-silu", "swiglu"}, {"relu", "relu"}, {"gelu_new", "gelu"}};
  return all;
}

void activation(FamilyKeys& k, const char* key, bool may_be_gated) {
  const auto fits = [&](const auto& pair) { return may_be_gated || !pair.first.starts_with("gated-"); };
  const auto& all = gated_functions();
  const auto find = [&](const std::string& name, std::string std::pair<std::string, std::string>::*side) {
    return std::find_if(all.begin(), all.end(), [&](const auto& pair) { return fits(pair) && pair.*side == name; });
  };
  if (k.reading()) {
    const std::string theirs = text_or(k, key, "relu");
    const auto found = find(theirs, &std::pair<std::string, std::string>::first);
    if (found == all.end()) {
      k.refuse(fmt::format("{} = \"{}\": only {}\"relu\" and \"gelu_new\" can be computed here", key, theirs,
                           may_be_gated ? "\"gated-gelu\", \"gated-silu\", " : ""));
      return;
    }
    k.set("model.activation", found->second);
    return;
  }
  const std::string ours = k.our_text("model.activation");
  const auto found = find(ours, &std::pair<std::string, std::string>::second);
  if (found == all.end()) {
    k.refuse(fmt::format("model.activation = \"{}\"", ours));
    return;
  }
  k.put(key, found->first);
}

// What a T5 without experts and a Switch call alike. last: of a block's FFN and its experts.
std::string tensor_name(const std::string& ours, const std::function<std::string(std::string)>& last) {
  if (ours == "model.embed_tokens.weight") {
    return "shared.weight";
  }
  if (ours == "model.norm.weight") {
    return "decoder.final_layer_norm.weight";
  }
  if (ours == std::string(encoder_norm) + ".weight") {
    return "encoder.final_layer_norm.weight";
  }
  if (ours == encoder_table || ours == decoder_table) {
    return ours.substr(0, ours.find('.')) + ".block.0.layer.0.SelfAttention.relative_attention_bias.weight";
  }
  const std::string mark = ".layers.";
  const std::size_t at = ours.find(mark);
  if (at == std::string::npos) {
    return ours;
  }
  const bool decoder = ours.starts_with("decoder");
  const std::size_t dot = ours.find('.', at + mark.size());
  const std::string block =
      ours.substr(0, at) + ".block" + ours.substr(at + mark.size() - 1, dot - at - mark.size() + 1);
  const std::string rest = ours.substr(dot + 1), of_last = decoder ? ".layer.2." : ".layer.1.";
  const auto of = [&](const char* name, const std::string& theirs) -> std::optional<std::string> {
    return rest.starts_with(name) ? std::optional(block + theirs + rest.substr(std::string(name).size()))
                                  : std::nullopt;
  };
  for (const auto& [name, theirs] :
       std::vector<std::pair<const char*, std::string>>{{"self_norm.", ".layer.0.layer_norm."},
                                                        {"self_attn.", ".layer.0.SelfAttention."},
                                                        {"cross_norm.", ".layer.1.layer_norm."},
                                                        {"cross_attn.", ".layer.1.EncDecAttention."},
                                                        {"mlp_norm.", of_last + "layer_norm."}}) {
    if (const auto found = of(name, theirs); found.has_value()) {
      return *found;
    }
  }
  return block + of_last + last(rest);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

// Of older files, in which each stack has the table.
std::vector<std::pair<std::string, std::string>> table_copies(const Settings& s) {
  std::vector<std::pair<std::string, std::string>> copies = {{"shared.weight", "encoder.embed_tokens.weight"},
                                                             {"shared.weight", "decoder.embed_tokens.weight"}};
  if (s.model.tie_embeddings) {
    copies.emplace_back("shared.weight", "lm_head.weight");
  }
  return copies;
}

class T5Family final : public PublishedFamily {
 public:
  explicit T5Family(bool multilingual) : multilingual_(multilingual) {}
  std::string kind() const override { return "t5"; }
  std::string architecture() const override {
    return multilingual_ ? "MT5ForConditionalGeneration" : "T5ForConditionalGeneration";
  }
  void state(FamilyKeys& k) const override {
    sizes(k);
    // transformers 5 says by scale_decoder_outputs what earlier versions said by tie_word_embeddings alone. An mT5's
    // head is a matrix of its own, whatever its file says.
    std::optional<bool> tied;
    if (k.reading()) {
      const std::optional<bool> written = flag_in(k, "tie_word_embeddings"),
                                scaled = flag_in(k, "scale_decoder_outputs");
      tied = multilingual_ ? std::optional(false) : scaled.has_value() ? scaled : written;
    } else if (multilingual_ && k.our_flag("model.tie_embeddings")) {
      k.refuse("model.tie_embeddings = true");
    }
    head(k, tied);
    activation(k, "feed_forward_proj", true);
    k.besides({"dense_act_fn"});
    k.ours("moe.experts", std::int64_t{0});
  }
  std::string tensor(const Settings& s, const std::string& ours) const override {
    const bool gated = is_gated(s.model.activation);
    return tensor_name(ours, [&](const std::string& rest) {
      std::string name = replaced(rest, "mlp.", "DenseReluDense.");
      name = replaced(name, ".gate_proj.", ".wi_0.");
      name = replaced(name, ".up_proj.", gated ? ".wi_1." : ".wi.");
      return replaced(name, ".down_proj.", ".wo.");
    });
  }
  std::vector<std::pair<std::string, std::string>> copies(const Settings& s) const override { return table_copies(s); }

 private:
  bool multilingual_;
};

using Blocks = std::set<std::int64_t>;

// Which blocks of a stack have experts, as transformers finds them.
Blocks their_blocks(std::int64_t layers, std::int64_t sparse) {
  const std::int64_t step = sparse > 0 ? layers / sparse : layers;
  Blocks blocks;
  for (std::int64_t i = 0; i < layers && step > 0; ++i) {
    if (i % step == 1 || step == 1) {
      blocks.insert(i);
    }
  }
  return blocks;
}
Blocks our_blocks(std::int64_t layers, std::int64_t every, std::int64_t first_dense) {
  Blocks blocks;
  for (std::int64_t i = first_dense; i < layers; ++i) {
    if ((i + 1) % every == 0) {
      blocks.insert(i);
    }
  }
  return blocks;
}

class SwitchFamily final : public PublishedFamily {
 public:
  std::string kind() const override { return "t5"; }
  std::string architecture() const override { return "SwitchTransformersForConditionalGeneration"; }

  void state(FamilyKeys& k) const override {
    sizes(k);
    head(k, k.reading() ? flag_in(k, "tie_word_embeddings") : std::nullopt);
    activation(k, "dense_act_fn", false);
    k.integer("num_experts", "moe.experts");
    k.ours("moe.router", std::string("switch"));
    k.ours("moe.top_k", std::int64_t{1});
    k.flag("router_bias", "moe.router_bias", false);
    k.number("router_jitter_noise", "moe.jitter", 0.01);
    k.theirs("router_dtype", std::string("float32"));
    k.theirs("router_type", std::string("tokens_masked"));
    k.theirs("num_selects", std::int64_t{1});
    k.theirs("batch_prioritized_routing", false);
    k.besides({"router_ignore_padding_tokens", "add_router_probs", "encoder_sparse_step", "decoder_sparse_step",
               "feed_forward_proj"});
    blocks(k);
    seats(k);
    if (!k.reading() && k.our_integer("moe.d_expert") != k.our_integer("model.d_ff")) {
      k.refuse(fmt::format("moe.d_expert = {}: experts are as wide as the dense FFNs", k.our_integer("moe.d_expert")));
    }
  }

  std::string tensor(const Settings&, const std::string& ours) const override {
    return tensor_name(ours, [](const std::string& rest) {
      const std::string experts = "moe.experts.";
      if (rest.starts_with(experts)) {
        const std::string of = "mlp.experts.expert_" + rest.substr(experts.size());
        return replaced(replaced(of, ".w1.", ".wi."), ".w2.", ".wo.");
      }
      const std::string name = replaced(rest, "moe.gate.", "mlp.router.classifier.");
      return replaced(replaced(name, ".up_proj.", ".wi."), ".down_proj.", ".wo.");
    });
  }
  std::vector<std::pair<std::string, std::string>> copies(const Settings& s) const override { return table_copies(s); }

 private:
  struct Stacks {
    std::int64_t encoder = 0, decoder = 0;
  };

  // Which blocks have experts, and the losses of routers, whose coefficients depend on how many there are: transformers
  // means over the routed blocks of a stack, and adds up both stacks; here it is a sum over all of them.
  static void blocks(FamilyKeys& k) {
    const char *const of_encoder = "num_sparse_encoder_layers", *const of_decoder = "num_sparse_decoder_layers";
    if (!k.reading()) {
      const std::int64_t decoder = k.our_integer("model.layers"), written = k.our_integer("model.encoder_layers");
      const std::int64_t every = k.our_integer("moe.every"), first = k.our_integer("moe.first_dense");
      const Stacks layers{written == 0 ? decoder : written, decoder};
      const Blocks ours[] = {our_blocks(layers.encoder, every, first), our_blocks(layers.decoder, every, first)};
      const auto put = [&](const char* key, std::int64_t of, const Blocks& wanted) {
        std::int64_t sparse = static_cast<std::int64_t>(wanted.size());
        if (their_blocks(of, sparse) != wanted) {
          k.refuse(
              fmt::format("moe.every = {} and moe.first_dense = {}: {} blocks have experts where {} says no such "
                          "thing",
                          every, first, wanted.size(), key));
        }
        k.put(key, sparse);
      };
      put(of_encoder, layers.encoder, ours[0]);
      put(of_decoder, layers.decoder, ours[1]);
      const double share = share_of(ours[0].size() + ours[1].size());
      k.put("router_aux_loss_coef", k.our_number("moe.aux_loss") / share);
      k.put("router_z_loss_coef", k.our_number("moe.z_loss") / share);
      return;
    }
    const std::int64_t encoder = integer_or(k, "num_layers", 1), decoder = integer_or(k, "num_decoder_layers", encoder);
    const Blocks wanted[] = {their_blocks(encoder, integer_or(k, of_encoder, 3)),
                             their_blocks(decoder, integer_or(k, of_decoder, 3))};
    const double share = share_of(wanted[0].size() + wanted[1].size());
    const auto number = [&](const char* key) {
      const std::optional<Value> value = k.take(key).value_or(0.001);
      return std::holds_alternative<double>(*value) ? std::get<double>(*value)
                                                    : static_cast<double>(integer_or(k, key, 0));
    };
    k.set("moe.aux_loss", number("router_aux_loss_coef") * share);
    k.set("moe.z_loss", number("router_z_loss_coef") * share);
    for (std::int64_t every = 1; every <= std::max(encoder, decoder) + 1; ++every) {
      for (std::int64_t first = 0; first <= std::max(encoder, decoder); ++first) {
        if (our_blocks(encoder, every, first) == wanted[0] && our_blocks(decoder, every, first) == wanted[1]) {
          k.set("moe.every", every);
          k.set("moe.first_dense", first);
          return;
        }
      }
    }
    k.refuse(
        fmt::format("{} and {} make blocks {{{}}} of the encoder and {{{}}} of the decoder routed: only every n-th "
                    "one, of both alike, can be here",
                    of_encoder, of_decoder, fmt::join(wanted[0], ", "), fmt::join(wanted[1], ", ")));
  }
  static double share_of(std::size_t routed) { return 2 / static_cast<double>(std::max<std::size_t>(routed, 1)); }

  // expert_capacity counts seats of an expert in a sequence. Here no token loses its seat unless moe.capacity_factor
  // says so; what is written then gives as many seats to a source, and all of them where nothing says so.
  static void seats(FamilyKeys& k) {
    if (k.reading()) {
      k.besides({"expert_capacity"});
      return;
    }
    const double factor = k.our_number("moe.capacity_factor");
    const std::int64_t target = k.our_integer("data.sequence_length"), written = k.our_integer("model.source_length");
    const std::int64_t source = written == 0 ? target : written;
    const double even = static_cast<double>(source) / static_cast<double>(k.our_integer("moe.experts"));
    k.put("expert_capacity",
          factor > 0 ? static_cast<std::int64_t>(std::ceil(factor * even - 1e-9)) : std::max(source, target));
  }
};

}  // namespace

std::shared_ptr<const PublishedFamily> make_t5_family() {
  return std::make_shared<T5Family>(false);
}
std::shared_ptr<const PublishedFamily> make_mt5_family() {
  return std::make_shared<T5Family>(true);
}
std::shared_ptr<const PublishedFamily> make_switch_family() {
  return std::make_shared<SwitchFamily>();
}

}  // namespace orthant::encoder_decoder
