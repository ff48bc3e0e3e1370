#include "core/arch/parameter_table.h"

#include <orthant/gate.h>

#include <cmath>

namespace orthant {

std::int64_t kv_heads_of(const Settings& s) {
  return s.model.kv_heads == 0 ? s.model.heads : s.model.kv_heads;
}
std::int64_t head_dim_of(const Settings& s) {
  return s.model.d_model / s.model.heads;
}
std::int64_t d_ff_of(const Settings& s) {
  return s.model.d_ff == 0 ? 4 * s.model.d_model : s.model.d_ff;
}
std::int64_t d_expert_of(const Settings& s) {
  return s.moe.d_expert == 0 ? d_ff_of(s) : s.moe.d_expert;
}

bool block_has_experts(const Settings& s, int block) {
  return s.moe.experts > 0 && (block + 1) % s.moe.every == 0;
}

int routed_blocks(const Settings& s, std::int64_t blocks) {
  int routed = 0;
  for (int block = 0; block < blocks; ++block) {
    routed += block_has_experts(s, block) ? 1 : 0;
  }
  return routed;
}

std::string block_stem(int block) {
  return fmt::format("model.layers.{}", block);
}

namespace {

// Builds ParamSpecs with the defaults of one experiment.
class Builder {
 public:
  explicit Builder(const Settings& s) : s_(s), d_(s.model.d_model) {}

  void norm(LayerSpecs& to, const std::string& stem) const {
    to.params.push_back(
        {.name = stem + ".weight", .global = {d_}, .region = Region::norm, .init = Init::ones, .decay = false});
    if (s_.model.norm == NormKind::layernorm) {
      to.params.push_back(
          {.name = stem + ".bias", .global = {d_}, .region = Region::norm, .init = Init::zeros, .decay = false});
    }
  }

  ParamSpec matrix(std::string name, Region region, std::int64_t rows, std::int64_t columns, float std) const {
    return {.name = std::move(name), .global = {rows, columns}, .region = region, .init = Init::normal, .std = std};
  }

  void attention(LayerSpecs& to, const std::string& stem) const {
    const std::int64_t c = head_dim_of(s_), h = s_.model.heads, kv = kv_heads_of(s_);
    auto by_head = [&](const char* name, std::int64_t heads) {
      ParamSpec p = matrix(stem + name, Region::attention, heads * c, d_, base());
      p.split[0] = Dim::head;
      p.units[0] = heads;
      p.repeats = heads < h;
      to.params.push_back(p);
    };
    by_head(".q_proj.weight", h);
    by_head(".k_proj.weight", kv);
    by_head(".v_proj.weight", kv);
    ParamSpec o = matrix(stem + ".o_proj.weight", Region::attention, d_, h * c, residual());
    o.split[1] = Dim::head;
    o.units[1] = h;
    to.params.push_back(o);
  }

  // The input matrices of an FFN (gate and up, or up alone), then the output one: [n, d] ..., [d, f].
  void ffn_in(LayerSpecs& to, const std::string& gate, const std::string& up, Region region, std::int64_t f,
              std::optional<std::int64_t> expert = {}) const {
    auto add = [&](const std::string& name) {
      ParamSpec p = matrix(name, region, f, d_, base());
      p.split[0] = Dim::ffn;
      p.expert = expert;
      to.params.push_back(p);
    };
    if (s_.model.activation == Activation::swiglu) {
      add(gate);
    }
    add(up);
  }
  void ffn_out(LayerSpecs& to, const std::string& down, Region region, std::int64_t f,
               std::optional<std::int64_t> expert = {}) const {
    ParamSpec p = matrix(down, region, d_, f, residual());
    p.split[1] = Dim::ffn;
    p.expert = expert;
    to.params.push_back(p);
  }

  float base() const { return static_cast<float>(s_.model.init_std); }
  // Projections into the residual stream start smaller (GPT-2): its variance then does not grow with depth.
  float residual() const {
    return static_cast<float>(s_.model.init_std / std::sqrt(2.0 * static_cast<double>(s_.model.layers)));
  }

 private:
  const Settings& s_;
  std::int64_t d_;
};

}  // namespace

std::vector<GateStateSpec> gate_state_table(const Settings& s) {
  std::vector<GateStateSpec> table;
  if (s.moe.experts == 0 || !gate_of(s).keeps_state(s.moe)) {
    return table;
  }
  for (int block = 0; block < s.model.layers; ++block) {
    if (block_has_experts(s, block)) {
      table.push_back({gate_state_prefix + block_stem(block) + ".block_sparse_moe", block + 1});
    }
  }
  return table;
}

std::vector<LayerSpecs> parameter_table(const Settings& s) {
  const Builder build(s);
  const std::int64_t d = s.model.d_model, experts = s.moe.experts;
  const bool gated = s.model.activation == Activation::swiglu;
  std::vector<LayerSpecs> table;

  LayerSpecs embedding{.layer = 0, .name = "embedding", .params = {}};
  ParamSpec tokens = build.matrix("model.embed_tokens.weight", Region::embedding, s.model.vocab_size, d, build.base());
  tokens.split[0] = Dim::vocab;
  embedding.params.push_back(tokens);
  if (s.model.positions == Positions::learned) {
    embedding.params.push_back(
        build.matrix("model.embed_positions.weight", Region::norm, s.data.sequence_length, d, build.base()));
  }
  table.push_back(embedding);

  for (int block = 0; block < s.model.layers; ++block) {
    const std::string stem = block_stem(block);
    LayerSpecs dense{.layer = block + 1, .name = fmt::format("layer {}", block), .params = {}};
    build.norm(dense, stem + ".input_layernorm");
    build.attention(dense, stem + ".self_attn");
    build.norm(dense, stem + ".post_attention_layernorm");
    if (!block_has_experts(s, block)) {
      const std::string mlp = stem + ".mlp";
      build.ffn_in(dense, mlp + ".gate_proj.weight", mlp + ".up_proj.weight", Region::ffn, d_ff_of(s));
      build.ffn_out(dense, mlp + ".down_proj.weight", Region::ffn, d_ff_of(s));
      table.push_back(dense);
      continue;
    }
    const std::string moe = stem + ".block_sparse_moe";
    dense.params.push_back(build.matrix(moe + ".gate.weight", Region::router, experts, d, build.base()));
    if (s.moe.shared_experts > 0) {
      const std::int64_t f = s.moe.shared_experts * d_expert_of(s);
      const std::string shared = moe + ".shared_experts";
      build.ffn_in(dense, shared + ".gate_proj.weight", shared + ".up_proj.weight", Region::ffn, f);
      build.ffn_out(dense, shared + ".down_proj.weight", Region::ffn, f);
    }
    table.push_back(dense);
    LayerSpecs routed{
        .layer = block + 1, .name = fmt::format("layer {} experts", block), .experts = true, .params = {}};
    for (int e = 0; e < experts; ++e) {
      const std::string expert = fmt::format("{}.experts.{}", moe, e);
      build.ffn_in(routed, expert + ".w1.weight", expert + (gated ? ".w3.weight" : ".w1.weight"), Region::experts,
                   d_expert_of(s), e);
    }
    for (int e = 0; e < experts; ++e) {
      build.ffn_out(routed, fmt::format("{}.experts.{}.w2.weight", moe, e), Region::experts, d_expert_of(s), e);
    }
    table.push_back(routed);
  }

  LayerSpecs head{.layer = static_cast<int>(s.model.layers) + 1, .name = "head", .params = {}};
  build.norm(head, "model.norm");
  if (!s.model.tie_embeddings) {
    ParamSpec logits = build.matrix("lm_head.weight", Region::head, s.model.vocab_size, d, build.base());
    logits.split[0] = Dim::vocab;
    head.params.push_back(logits);
  }
  table.push_back(head);
  for (LayerSpecs& layer : table) {
    for (ParamSpec& spec : layer.params) {
      spec.layers = {layer.layer};
    }
  }
  if (s.model.tie_embeddings) {
    table.front().params.front().layers.push_back(head.layer);
  }
  return table;
}

}  // namespace orthant
