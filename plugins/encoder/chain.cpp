#include "chain.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include <orthant/blocks.h>
#include <orthant/catalogue.h>
#include <orthant/part.h>
#include <orthant/settings.h>
#include <orthant/sizes.h>

#include "layers.h"
#include "settings.h"

namespace orthant::encoder {

bool has_first_norm(const Settings& s, int block) {
  const EncoderKeys keys = encoder_keys(s);
  return block > 0 || keys.post_norm || !keys.embedding_norm;
}

namespace {

void append(std::vector<ParamSpec>& to, std::vector<ParamSpec> specs) {
  std::move(specs.begin(), specs.end(), std::back_inserter(to));
}

class Bert final : public ModelKind {
 public:
  std::vector<KindKey> keys() const override { return EncoderKeys::keys().declared(); }

  std::vector<Space> spaces(const Settings& s) const override {
    return {{.name = "tokens",
             .positions = s.data.sequence_length,
             .both_ways = true,
             .columns = encoder_keys(s).token_types}};
  }

  std::vector<Refusal> refusals(const Settings& s) const override {
    const EncoderKeys keys = encoder_keys(s);
    std::vector<Refusal> found;
    const auto refuse = [&](bool wrong, const std::string& key, const std::string& what, const char* advice) {
      if (wrong) {
        found.push_back({{"model." + key}, "[model] " + key + ": " + what, advice});
      }
    };
    const std::string kind = "kind \"bert\" ";
    refuse(s.model.mtp_depth > 0, "mtp_depth", kind + "predicts no tokens further ahead", "leave it out");
    refuse(s.model.norm_place != NormPlace::before, "norm_place", kind + "says it by post_norm",
           "leave it out, or write post_norm = true");
    refuse(s.model.residual_scale != 1, "residual_scale", kind + "scales no branch", "leave it out");
    refuse(s.model.embedding_scale != 1, "embedding_scale", kind + "scales no embedding", "leave it out");
    refuse(keys.dense_biases && is_gated(s.model.activation), "dense_biases", "a gated FFN has none",
           "leave it out, or write activation = \"gelu\" or \"relu\"");
    refuse(has_own_ffn(s) && s.model.ffn != "mlp", "ffn", "with dense_biases or gelu there is \"mlp\" alone",
           "leave it out");
    const bool has_gelu = s.model.activation == Activation::gelu || s.model.activation == Activation::geglu;
    refuse(keys.gelu == GeluForm::exact && !has_gelu, "gelu", "the activation has none",
           "leave it out, or write activation = \"gelu\" or \"geglu\"");
    refuse(keys.classes > 0 && s.model.tie_embeddings, "tie_embeddings", "classes have a matrix of their own",
           "write tie_embeddings = false");
    refuse(keys.classes == 0 && keys.pooling == Pooling::mean, "pooling",
           "each token of the vocabulary is told from itself", "write classes, or leave it out");
    refuse(keys.pooling == Pooling::mean && s.model.sliding_window > 0 && s.model.full_attention_every == 0, "pooling",
           "the mean is over the whole text, and no block sees it", "write full_attention_every, or pooling = \"cls\"");
    refuse(keys.pooling == Pooling::mean && s.model.d_model % s.model.heads != 0, "pooling",
           "the mean is taken head by head, and heads do not divide d_model", "write pooling = \"cls\"");
    refuse(keys.full_attention_first && s.model.full_attention_every < 2, "full_attention_first",
           "no block is told to have no window", "write full_attention_every = 2 or more, and sliding_window");
    refuse(keys.full_attention_first && s.model.layers < s.model.full_attention_every, "full_attention_first",
           "there are fewer layers than full_attention_every", "write more layers, or a smaller full_attention_every");
    return found;
  }

  std::vector<Link> links(const Settings& s) const override {
    std::vector<Link> of_decoder = decoder_kind(s).links(s);
    std::vector<Link> links = {embedding_link(s, of_decoder.front())};
    for (int block = 0; block < s.model.layers; ++block) {
      links.push_back(block_link(s, block));
    }
    if (!encoder_keys(s).post_norm) {
      Link norm = link_of("final norm", s);
      norm.parameters.front().params = norm_parameters(s, final_norm_stem);
      norm.touched = static_cast<double>(s.model.d_model);
      links.push_back(std::move(norm));
    }
    Link transform = link_of("transform", s);
    transform.parameters.front().params = transform_parameters(s);
    transform.flops = transform_flops(s);
    transform.touched = static_cast<double>(s.model.d_model);
    links.push_back(std::move(transform));
    links.push_back(head_link(s, of_decoder.back()));
    if (s.model.tie_embeddings) {
      links.front().parameters.front().params.front().layers = {0, static_cast<int>(links.size()) - 1};
    }
    return links;
  }

  std::unique_ptr<Layer> make(const Link& link, const Parameters& parameters, Plan& plan) const override {
    if (link.block >= 0) {
      return make_block(link, parameters, plan);
    }
    if (link.objective) {
      return decoder_kind(plan.settings()).make(link, parameters, plan);
    }
    if (link.number == 0) {
      return make_embedding(parameters, plan);
    }
    return link.name == "transform" ? make_transform(parameters, plan) : make_final_norm(parameters, plan);
  }

 private:
  static const ModelKind& decoder_kind(const Settings& s) { return s.catalogue->get<ModelKind>("decoder"); }

  static Link link_of(const std::string& name, const Settings& s) {
    Link link{.name = name, .parameters = {{.name = name}}};
    link.passes = {{.name = "x", .columns = s.model.d_model, .dtype = compute_type(s)}};
    return link;
  }

  static Link embedding_link(const Settings& s, Link& of_decoder) {
    const EncoderKeys keys = encoder_keys(s);
    Link link = link_of("embedding", s);
    LayerSpecs& tables = link.parameters.front();
    tables.looked_up = true;
    tables.params = std::move(of_decoder.parameters.front().params);
    tables.params.front().layers = {};  // the decoder kind's numbers are of its own chain
    if (keys.token_types > 0) {
      tables.params.push_back({.name = types_name,
                               .global = {keys.token_types, s.model.d_model},
                               .region = Region::norm,
                               .std = static_cast<float>(s.model.init_std)});
    }
    if (keys.embedding_norm) {
      append(tables.params, norm_parameters(s, embedding_norm_stem));
    }
    link.touched = static_cast<double>((keys.embedding_norm ? 2 : 1) * s.model.d_model);
    return link;
  }

  static Link block_link(const Settings& s, int block) {
    const std::string stem = block_stem(block);
    Link link = link_of("layer " + std::to_string(block), s);
    link.block = block;
    const int kind = attention_block(s, block);
    const AttentionPart& attention = s.catalogue->get<AttentionPart>(s.model.attention);
    std::vector<ParamSpec>& params = link.parameters.front().params;
    if (has_first_norm(s, block)) {
      append(params, norm_parameters(s, stem + norm_before));
    }
    append(params, attention.parameters({s, kind, stem + ".self_attn"}));
    append(params, norm_parameters(s, stem + norm_between));
    // Twice as many keys as before a token.
    link.flops =
        attention.flops(s, kind) + 2 * static_cast<double>(s.model.heads * head_dim_of(s) * s.data.sequence_length);
    link.touched = static_cast<double>(4 * s.model.d_model);
    const bool routed = s.moe.experts > 0 && block >= s.moe.first_dense && (block + 1) % s.moe.every == 0;
    if (routed) {
      add_experts(link, s, stem + ".block_sparse_moe");
    } else if (has_own_ffn(s)) {
      append(params, ffn_parameters(s, stem + ".mlp"));
      link.flops += own_ffn_flops(s);
    } else {
      const FfnPart& ffn = s.catalogue->get<FfnPart>(s.model.ffn);
      append(params, ffn.parameters({s, block, stem + ".mlp"}));
      link.flops += ffn.flops(s, block);
    }
    link.again_full = link.flops + 20 * link.touched;
    link.again_selective = routed ? 0 : 10 * static_cast<double>(d_ff_of(s));
    return link;
  }

  static Link head_link(const Settings& s, Link& of_decoder) {
    Link head = std::move(of_decoder);
    const std::int64_t classes = encoder_keys(s).classes;
    for (ParamSpec& spec : head.parameters.front().params) {
      spec.layers = {};
      if (classes > 0 && spec.split[0] == Dim::vocab) {
        spec.global = spec.global.rank() == 1 ? Shape{classes} : Shape{classes, s.model.d_model};
      }
    }
    if (classes > 0) {
      head.flops = 2 * static_cast<double>(s.model.d_model * classes);
    }
    return head;
  }
};

}  // namespace

std::shared_ptr<const ModelKind> make_bert() {
  return std::make_shared<Bert>();
}

}  // namespace orthant::encoder
