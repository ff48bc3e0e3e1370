#include "core/arch/decoder.h"

#include <orthant/gate.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "core/arch/param_specs.h"
#include "core/arch/trained.h"

namespace orthant {

float residual_std(const Settings& s) {
  return static_cast<float>(s.model.init_std / std::sqrt(2.0 * static_cast<double>(s.model.layers)));
}

namespace {

// The block of the model whose kind this one has.
int kind_of_block(const Settings& s, int block) {
  return std::min(block, static_cast<int>(s.model.layers) - 1);
}

}  // namespace

bool block_has_window(const Settings& s, int block) {
  const std::int64_t every = s.model.full_attention_every;
  return s.model.sliding_window > 0 && (every == 0 || (kind_of_block(s, block) + 1) % every != 0);
}

bool block_has_experts(const Settings& s, int block) {
  const int kind = kind_of_block(s, block);
  return s.moe.experts > 0 && kind >= s.moe.first_dense && (kind + 1) % s.moe.every == 0;
}

int mtp_depth_of(const Settings& s, int block) {
  return block - static_cast<int>(s.model.layers);
}

std::string block_stem(int block) {
  return fmt::format("model.layers.{}", block);
}

std::string block_stem(const Settings& s, int block) {
  const int layers = static_cast<int>(s.model.layers);
  return block < layers ? block_stem(block) : mtp_stem(block - layers) + ".block";
}

std::string mtp_stem(int depth) {
  return fmt::format("mtp.{}", depth);
}

namespace {

Slot residual(const Settings& s) {
  return {.name = "x", .columns = s.model.d_model, .dtype = compute_type(s)};
}

void append(std::vector<ParamSpec>& to, std::vector<ParamSpec> specs) {
  std::move(specs.begin(), specs.end(), std::back_inserter(to));
}

// As above, of a part, which may be a plugin's.
void append_part(std::vector<ParamSpec>& to, const char* noun, const std::string& name, const Part& part,
                 const PartPlace& place) {
  std::vector<ParamSpec> specs = part.parameters(place);
  for (const ParamSpec& spec : specs) {
    if (const std::string wrong = wrong_part_spec(spec, place.stem); !wrong.empty()) {
      throw ConfigError(fmt::format("{} '{}': {}", noun, name, wrong));
    }
  }
  append(to, std::move(specs));
}

// The routed experts of a block. Matrices of one kind lie back to back: one grouped product serves all experts.
LayerSpecs routed_specs(const Settings& s, const Link& link) {
  const std::string& moe = link.router;
  LayerSpecs routed{.name = link.name + " experts", .experts = true, .params = {}};
  const bool gated = is_gated(s.model.activation);
  for (int e = 0; e < s.moe.experts; ++e) {
    const std::string expert = fmt::format("{}.experts.{}", moe, e);
    append(routed.params, ffn_in_specs(s, expert + ".w1.weight", expert + (gated ? ".w3.weight" : ".w1.weight"),
                                       Region::experts, d_expert_of(s), e));
  }
  for (int e = 0; e < s.moe.experts; ++e) {
    routed.params.push_back(
        ffn_out_spec(s, fmt::format("{}.experts.{}.w2.weight", moe, e), Region::experts, d_expert_of(s), e));
  }
  return routed;
}

// Their biases, in a layer of their own that does not count as routed experts: its gradients begin at zero and are
// added to, where the products overwrite those of the matrices. Those of one kind lie back to back here too.
LayerSpecs routed_bias_specs(const Settings& s, const Link& link) {
  const std::string& moe = link.router;
  LayerSpecs biases{.name = link.name + " experts' biases", .params = {}};
  const auto add = [&](const std::string& name, std::int64_t n, int e) {
    biases.params.push_back(
        {.name = name, .global = {n}, .region = Region::experts, .expert = e, .init = Init::zeros, .decay = false});
  };
  for (int e = 0; e < s.moe.experts; ++e) {
    for (const char* matrix : {"w1", "w3"}) {
      if (matrix == std::string("w1") || is_gated(s.model.activation)) {
        add(fmt::format("{}.experts.{}.{}.bias", moe, e, matrix), d_expert_of(s), e);
        biases.params.back().split[0] = Dim::ffn;
      }
    }
  }
  for (int e = 0; e < s.moe.experts; ++e) {
    add(fmt::format("{}.experts.{}.w2.bias", moe, e), s.model.d_model, e);
  }
  return biases;
}

}  // namespace

PartPlace attention_place(const Settings& s, int block) {
  return {s, block, block_stem(s, block) + ".self_attn"};
}

PartPlace ffn_place(const Settings& s, int block) {
  return {s, block, block_stem(s, block) + ".mlp"};
}

BlockNorms block_norms(const Settings& s, const std::string& stem) {
  const std::string input = stem + ".input_layernorm", attention = stem + ".post_attention_layernorm",
                    ffn = stem + ".post_feedforward_layernorm";
  switch (s.model.norm_place) {
    case NormPlace::before: return {input, "", attention, ""};
    case NormPlace::after: return {"", attention, "", ffn};
    case NormPlace::both: return {input, attention, stem + ".pre_feedforward_layernorm", ffn};
  }
  return {};
}

const AttentionPart& attention_part(const Settings& s) {
  return s.catalogue->get<AttentionPart>(s.model.attention);
}

const FfnPart& ffn_part(const Settings& s) {
  return s.catalogue->get<FfnPart>(s.model.ffn);
}

namespace {

double product(std::int64_t inputs, std::int64_t outputs) {
  return 2 * static_cast<double>(inputs) * static_cast<double>(outputs);
}

}  // namespace

double routed_flops(const Settings& s) {
  const double router = product(s.model.d_model, s.moe.columns());
  return router + gate_of(s).experts_of_token(s.moe) * ffn_flops(s, d_expert_of(s)) + ffn_flops(s, d_shared_of(s));
}

void append_routed(Link& link, const Settings& s) {
  LayerSpecs& dense = link.parameters.front();
  const std::int64_t d = s.model.d_model;
  const std::string& moe = link.router;
  dense.params.push_back(matrix_spec(moe + ".gate.weight", Region::router, s.moe.columns(), d, base_std(s)));
  if (s.moe.router_bias) {
    dense.params.push_back({.name = moe + ".gate.bias",
                            .global = {s.moe.columns()},
                            .region = Region::router,
                            .init = Init::zeros,
                            .decay = false});
  }
  if (s.moe.shared_experts > 0) {
    append(dense.params, ffn_specs(s, moe + ".shared_experts", d_shared_of(s)));
  }
  if (s.moe.shared_gate) {
    dense.params.push_back(matrix_spec(moe + ".shared_expert_gate.weight", Region::norm, 1, d, base_std(s)));
  }
  link.parameters.push_back(routed_specs(s, link));
  if (s.moe.expert_bias) {
    link.parameters.push_back(routed_bias_specs(s, link));
  }
}

namespace {

double block_flops(const Settings& s, int block) {
  return attention_part(s).flops(s, block) +
         (block_has_experts(s, block) ? routed_flops(s) : ffn_part(s).flops(s, block));
}

// A block, or a depth of multi-token prediction that has one. `dense` has what stands before the block in its link.
Link block_link(const Settings& s, int block, std::string name, LayerSpecs dense) {
  const std::string stem = block_stem(s, block);
  const bool routed = block_has_experts(s, block);
  Link link{.name = std::move(name), .block = block};
  link.flops = block_flops(s, block);
  link.touched = static_cast<double>(4 * s.model.d_model);
  link.again_full = cost_of(link);
  // About ten operations for each channel of a dense FFN.
  link.again_selective = 10 * static_cast<double>(routed ? d_shared_of(s) : d_ff_of(s));
  link.router = routed ? stem + ".block_sparse_moe" : "";
  link.passes = {residual(s)};
  dense.name = link.name;
  const BlockNorms norms = block_norms(s, stem);
  const auto add_norm = [&](const std::string& norm) {
    if (!norm.empty()) {
      append(dense.params, norm_specs(s, norm));
    }
  };
  add_norm(norms.before_attention);
  append_part(dense.params, AttentionPart::noun, s.model.attention, attention_part(s), attention_place(s, block));
  add_norm(norms.after_attention);
  add_norm(norms.before_ffn);
  add_norm(norms.after_ffn);
  if (!routed) {
    append_part(dense.params, FfnPart::noun, s.model.ffn, ffn_part(s), ffn_place(s, block));
    link.parameters = {std::move(dense)};
    return link;
  }
  link.parameters.push_back(std::move(dense));
  append_routed(link, s);
  return link;
}

Link embedding_link(const Settings& s) {
  const std::int64_t d = s.model.d_model;
  LayerSpecs tables{.name = "embedding", .looked_up = true, .params = {}};
  tables.params.push_back(
      matrix_spec("model.embed_tokens.weight", Region::embedding, s.model.vocab_size, d, base_std(s)));
  tables.params.back().split[0] = Dim::vocab;
  if (s.model.positions == Positions::learned) {
    tables.params.push_back(
        matrix_spec("model.embed_positions.weight", Region::norm, s.data.sequence_length, d, base_std(s)));
  }
  return {.name = tables.name,
          .parameters = {std::move(tables)},
          .touched = static_cast<double>(d),
          .passes = {residual(s)}};
}

// Behind it are the depths of multi-token prediction, where there are any.
Link head_link(const Settings& s) {
  LayerSpecs head{.name = "head", .params = {}};
  append(head.params, norm_specs(s, "model.norm"));
  if (!s.model.tie_embeddings) {
    ParamSpec logits = matrix_spec("lm_head.weight", Region::head, s.model.vocab_size, s.model.d_model, base_std(s));
    logits.split[0] = Dim::vocab;
    head.params.push_back(logits);
  }
  if (s.model.head_bias) {
    head.params.push_back({.name = "lm_head.bias",
                           .global = {s.model.vocab_size},
                           .region = Region::head,
                           .init = Init::zeros,
                           .decay = false});
    head.params.back().split[0] = Dim::vocab;
  }
  Link link{.name = head.name, .parameters = {std::move(head)}};
  link.flops = product(s.model.d_model, s.model.vocab_size);
  link.touched = static_cast<double>(s.model.d_model);
  link.objective = true;
  if (s.model.mtp_depth > 0) {
    link.passes = {residual(s)};
  }
  return link;
}

// What joins a token with what lies before the block, the block, the norm behind it, and a head.
Link mtp_link(const Settings& s, int depth) {
  const std::int64_t d = s.model.d_model;
  const std::string stem = mtp_stem(depth);
  LayerSpecs specs;
  append(specs.params, norm_specs(s, stem + ".enorm"));
  append(specs.params, norm_specs(s, stem + ".hnorm"));
  specs.params.push_back(matrix_spec(stem + ".eh_proj.weight", Region::norm, d, 2 * d, base_std(s)));
  append(specs.params, norm_specs(s, stem + ".norm"));
  Link link = block_link(s, static_cast<int>(s.model.layers) + depth, fmt::format("mtp {}", depth), std::move(specs));
  link.flops = product(2 * d, d) + link.flops + product(d, s.model.vocab_size);
  link.touched *= 2;
  link.objective = true;
  if (depth + 1 == s.model.mtp_depth) {
    link.passes.clear();
  }
  return link;
}

// Which links use the parameters of embedding and head, beside their own.
void share_vocabulary(std::vector<Link>& links, const Settings& s) {
  const int embedding = 0, head = static_cast<int>(s.model.layers) + 1;
  std::vector<int> behind;
  for (int link = head + 1; link < static_cast<int>(links.size()); ++link) {
    behind.push_back(link);
  }
  const auto share = [&](int link, const char* name, bool with_head) {
    for (ParamSpec& spec : links[static_cast<std::size_t>(link)].parameters.front().params) {
      if (spec.name == name) {
        spec.layers = {link};
        if (with_head) {
          spec.layers.push_back(head);
        }
        spec.layers.insert(spec.layers.end(), behind.begin(), behind.end());
      }
    }
  };
  share(embedding, "model.embed_tokens.weight", s.model.tie_embeddings);
  share(head, "lm_head.weight", false);
}

}  // namespace

double ffn_flops(const Settings& s, std::int64_t width) {
  const double matrices = is_gated(s.model.activation) ? 3 : 2;
  return 2 * matrices * static_cast<double>(s.model.d_model) * static_cast<double>(width);
}

std::vector<Link> decoder_links(const Settings& s) {
  std::vector<Link> links = {embedding_link(s)};
  for (int block = 0; block < s.model.layers; ++block) {
    links.push_back(block_link(s, block, fmt::format("layer {}", block), {}));
  }
  links.push_back(head_link(s));
  for (int depth = 0; depth < s.model.mtp_depth; ++depth) {
    links.push_back(mtp_link(s, depth));
  }
  share_vocabulary(links, s);
  return links;
}

void require_decoder(const Settings& s, const std::string& what) {
  if (s.model.kind != decoder_kind) {
    throw SettingError("model.kind", fmt::format("[model] kind: {} knows models of kind \"{}\" alone, and this one is "
                                                 "\"{}\"",
                                                 what, decoder_kind, s.model.kind));
  }
}

}  // namespace orthant
