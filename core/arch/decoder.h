// The chain of the core's own kind of model, "decoder": embedding, blocks, final norm and head, and behind the head the
// blocks of model.mtp_depth. Every weight of it: where it belongs, how it is split and initialised.
//
// Names are Hugging Face's where it has the model (Mixtral; Mistral for a dense SwiGLU model); other variants extend
// the same scheme (biases of norms, learned positions, shared experts, FFNs without a gate).
#pragma once

#include <string>
#include <vector>

#include <orthant/part.h>

#include "core/arch/links.h"

namespace orthant {

inline constexpr const char* decoder_kind = "decoder";  // model.kind
std::vector<Link> decoder_links(const Settings& settings);
// For those who take the model for a decoder, of whose blocks and names they know: `what` names them. Errors:
// SettingError for another model.kind.
void require_decoder(const Settings& settings, const std::string& what);

// Of one token's forward pass through an FFN with the model's activation, `width` channels wide.
double ffn_flops(const Settings& settings, std::int64_t width);
// Of one token in a block with experts: router, routed and shared experts.
double routed_flops(const Settings& settings);
// The parameters of Link::router join those of the link, the router's and the shared experts' in its first LayerSpecs.
void append_routed(Link& link, const Settings& settings);

// A block counts from 0. Those of model.mtp_depth are the last ones, and each is as the model's last.
bool block_has_window(const Settings& settings, int block);  // model.sliding_window, model.full_attention_every
bool block_has_experts(const Settings& settings, int block);
// The depth of multi-token prediction, from 0, whose block it is. REQUIRES: it is such a block.
int mtp_depth_of(const Settings& settings, int block);

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
