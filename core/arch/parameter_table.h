// The one table of parameter names: every weight of the model, where it belongs, how it is split and initialised.
//
// Names are Hugging Face's where it has the model (Mixtral; Mistral for a dense SwiGLU model); other variants extend
// the same scheme (biases of norms, learned positions, shared experts, FFNs without a gate).
#pragma once

#include <string>
#include <vector>

#include <orthant/param.h>
#include <orthant/part.h>
#include <orthant/settings.h>

namespace orthant {

// Layer numbers: 0 is the embedding, 1 .. layers are the blocks, layers + 1 is the final norm and head, and behind it
// come the blocks of model.mtp_depth (core/model/mtp.h).
struct LayerSpecs {
  int layer = 0;
  std::string name;               // "embedding", "layer 3", "layer 3 experts", "head"
  bool experts = false;           // the routed experts
  std::vector<ParamSpec> params;  // in the order of their flat buffer, which layers rely on
};

// Of the whole model, whatever this rank holds. Deterministic: the same order on every rank.
std::vector<LayerSpecs> parameter_table(const Settings& settings);

// Whether something of the layer's router trains.
bool router_learns(const LayerSpecs& layer);

// What gates keep of a routed layer (Gate::keeps_state), f32 [E] each: its name in a checkpoint, and the layer. None
// where there is no such gate.
inline constexpr const char* gate_state_prefix = "gate/";
struct GateStateSpec {
  std::string name;  // "gate/model.layers.3.block_sparse_moe"
  int layer = 0;
  bool learns =
      true;  // false where all of the layer's router is frozen and has no adapter: it keeps what it began with
};
std::vector<GateStateSpec> gate_state_table(const Settings& settings);
std::vector<GateStateSpec> gate_state_table(const Settings& settings, const std::vector<LayerSpecs>& parameters);

// A block counts from 0. Those of model.mtp_depth are the last ones, and each is as the model's last.
bool block_has_window(const Settings& settings, int block);  // model.sliding_window, model.full_attention_every
bool block_has_experts(const Settings& settings, int block);
int routed_blocks(const Settings& settings, std::int64_t blocks);  // blocks with experts among the first `blocks`
inline int routed_blocks(const Settings& settings) {
  return routed_blocks(settings, blocks_of(settings));
}
int head_layer(const Settings& settings);
int layer_of_block(const Settings& settings, int block);
int blocks_before(const Settings& settings, int layer);  // those in layers below `layer`
inline int routed_before(const Settings& settings, int layer) {
  return routed_blocks(settings, blocks_before(settings, layer));
}
std::string layer_name(const Settings& settings, int layer);  // as people read it: "the embedding", "layer 3", "mtp 0"

std::string block_stem(int block);                            // "model.layers.3": of the model's own blocks
std::string block_stem(const Settings& settings, int block);  // of any: "mtp.0.block"
std::string mtp_stem(int depth);                              // "mtp.0"; depth counts from 0

// The norms of the block `stem`, by their names; empty: there is none (model.norm_place).
struct BlockNorms {
  std::string before_attention, after_attention, before_ffn, after_ffn;
};
BlockNorms block_norms(const Settings& settings, const std::string& stem);

// The parts that the settings choose, and where they stand in a block.
const AttentionPart& attention_part(const Settings& settings);
const FfnPart& ffn_part(const Settings& settings);
PartPlace attention_place(const Settings& settings, int block);
PartPlace ffn_place(const Settings& settings, int block);

}  // namespace orthant
