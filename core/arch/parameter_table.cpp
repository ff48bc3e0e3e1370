#include "core/arch/parameter_table.h"

#include <orthant/gate.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
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

int routed_blocks(const Settings& s, std::int64_t blocks) {
  int routed = 0;
  for (int block = 0; block < blocks; ++block) {
    routed += block_has_experts(s, block) ? 1 : 0;
  }
  return routed;
}

int head_layer(const Settings& s) {
  return static_cast<int>(s.model.layers) + 1;
}

int layer_of_block(const Settings& s, int block) {
  return block < s.model.layers ? block + 1 : block + 2;
}

int blocks_before(const Settings& s, int layer) {
  return std::max(layer <= head_layer(s) ? layer - 1 : layer - 2, 0);
}

std::string layer_name(const Settings& s, int layer) {
  const int head = head_layer(s);
  return layer == 0      ? "the embedding"
         : layer == head ? "the head"
         : layer < head  ? fmt::format("layer {}", layer - 1)
                         : fmt::format("mtp {}", layer - head - 1);
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
LayerSpecs routed_specs(const Settings& s, int block, const std::string& moe) {
  const int layer = layer_of_block(s, block);
  LayerSpecs routed{.layer = layer, .name = layer_name(s, layer) + " experts", .experts = true, .params = {}};
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
LayerSpecs routed_bias_specs(const Settings& s, int block, const std::string& moe) {
  const int layer = layer_of_block(s, block);
  LayerSpecs biases{.layer = layer, .name = layer_name(s, layer) + " experts' biases", .params = {}};
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

bool router_learns(const LayerSpecs& layer) {
  return std::any_of(layer.params.begin(), layer.params.end(), [](const ParamSpec& spec) {
    return spec.region == Region::router && (!spec.frozen || spec.adapted);
  });
}

std::vector<GateStateSpec> gate_state_table(const Settings& s) {
  const bool any = s.moe.experts > 0 && gate_of(s).keeps_state(s.moe);
  return any ? gate_state_table(s, parameter_table(s)) : std::vector<GateStateSpec>();
}

std::vector<GateStateSpec> gate_state_table(const Settings& s, const std::vector<LayerSpecs>& parameters) {
  std::vector<GateStateSpec> table;
  if (s.moe.experts == 0 || !gate_of(s).keeps_state(s.moe)) {
    return table;
  }
  std::set<int> learning;  // layers
  for (const LayerSpecs& layer : parameters) {
    if (router_learns(layer)) {
      learning.insert(layer.layer);
    }
  }
  for (int block = 0; block < blocks_of(s); ++block) {
    if (block_has_experts(s, block)) {
      const int layer = layer_of_block(s, block);
      table.push_back(
          {gate_state_prefix + block_stem(s, block) + ".block_sparse_moe", layer, learning.contains(layer)});
    }
  }
  return table;
}

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

// `dense` has what stands before the block in its layer.
void add_block(std::vector<LayerSpecs>& table, const Settings& s, int block, LayerSpecs dense) {
  const std::string stem = block_stem(s, block);
  const BlockNorms norms = block_norms(s, stem);
  const auto add_norm = [&](const std::string& name) {
    if (!name.empty()) {
      append(dense.params, norm_specs(s, name));
    }
  };
  add_norm(norms.before_attention);
  append_part(dense.params, AttentionPart::noun, s.model.attention, attention_part(s), attention_place(s, block));
  add_norm(norms.after_attention);
  add_norm(norms.before_ffn);
  add_norm(norms.after_ffn);
  if (!block_has_experts(s, block)) {
    append_part(dense.params, FfnPart::noun, s.model.ffn, ffn_part(s), ffn_place(s, block));
    table.push_back(std::move(dense));
    return;
  }
  const std::int64_t d = s.model.d_model;
  const std::string moe = stem + ".block_sparse_moe";
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
  table.push_back(std::move(dense));
  table.push_back(routed_specs(s, block, moe));
  if (s.moe.expert_bias) {
    table.push_back(routed_bias_specs(s, block, moe));
  }
}

// Which layers use a parameter.
void share_parameters(std::vector<LayerSpecs>& table, const Settings& s) {
  const int head = head_layer(s);
  for (LayerSpecs& layer : table) {
    for (ParamSpec& spec : layer.params) {
      spec.layers = {layer.layer};
      const bool tokens = spec.name == "model.embed_tokens.weight";
      if (tokens && s.model.tie_embeddings) {
        spec.layers.push_back(head);
      }
      for (int depth = 0; depth < s.model.mtp_depth && (tokens || spec.name == "lm_head.weight"); ++depth) {
        spec.layers.push_back(head + 1 + depth);
      }
    }
  }
}

LayerSpecs begun(const Settings& s, int layer) {
  return {.layer = layer, .name = layer_name(s, layer), .params = {}};
}

// What joins a token with what lies before the block of a depth, and the norm behind it.
LayerSpecs mtp_specs(const Settings& s, int depth) {
  const std::int64_t d = s.model.d_model;
  const std::string stem = mtp_stem(depth);
  LayerSpecs specs = begun(s, head_layer(s) + 1 + depth);
  append(specs.params, norm_specs(s, stem + ".enorm"));
  append(specs.params, norm_specs(s, stem + ".hnorm"));
  specs.params.push_back(matrix_spec(stem + ".eh_proj.weight", Region::norm, d, 2 * d, base_std(s)));
  append(specs.params, norm_specs(s, stem + ".norm"));
  return specs;
}

}  // namespace

std::vector<LayerSpecs> parameter_table(const Settings& s) {
  const std::int64_t d = s.model.d_model;
  std::vector<LayerSpecs> table;

  LayerSpecs embedding{.layer = 0, .name = "embedding", .params = {}};
  ParamSpec tokens = matrix_spec("model.embed_tokens.weight", Region::embedding, s.model.vocab_size, d, base_std(s));
  tokens.split[0] = Dim::vocab;
  embedding.params.push_back(tokens);
  if (s.model.positions == Positions::learned) {
    embedding.params.push_back(
        matrix_spec("model.embed_positions.weight", Region::norm, s.data.sequence_length, d, base_std(s)));
  }
  table.push_back(embedding);

  for (int block = 0; block < s.model.layers; ++block) {
    add_block(table, s, block, begun(s, layer_of_block(s, block)));
  }

  LayerSpecs head{.layer = head_layer(s), .name = "head", .params = {}};
  append(head.params, norm_specs(s, "model.norm"));
  if (!s.model.tie_embeddings) {
    ParamSpec logits = matrix_spec("lm_head.weight", Region::head, s.model.vocab_size, d, base_std(s));
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
  table.push_back(head);
  for (int depth = 0; depth < s.model.mtp_depth; ++depth) {
    add_block(table, s, static_cast<int>(s.model.layers) + depth, mtp_specs(s, depth));
  }
  share_parameters(table, s);
  add_adapters(table, s);
  set_rates(table, s.optimizer);
  freeze(table, s);
  return table;
}

}  // namespace orthant
