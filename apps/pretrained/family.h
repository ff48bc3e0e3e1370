// Families of published models: what a config.json of each says, and how its tensors are called.
//
// Source of the keys and names: the configuration and modelling classes of Hugging Face's transformers, checked with
// models that it has made (tests/pretrained).
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/pretrained/config_link.h"

namespace orthant {

// How the tensors of a routed layer are called.
enum class MoeNames {
  none,     // dense
  mixtral,  // block_sparse_moe.gate, .experts.N.w1 (gate), .w3 (up), .w2 (down): ours too
  mlp,      // mlp.gate, mlp.experts.N.gate_proj, .up_proj, .down_proj
  gpt_oss   // mlp.router with a bias, and the experts of a layer packed and turned (ExpertForm::packed)
};

struct Family {
  std::string model_type;    // of config.json
  std::string architecture;  // the class in transformers
  MoeNames names = MoeNames::none;
  std::string shared;  // "shared_expert", "shared_experts": what stands between mlp. and .gate_proj
  std::function<void(ConfigLink&)> state;
  // The bias of a gate, behind the layer's name, [E], or [1, E].
  std::string gate_bias = ".gate.e_score_correction_bias";
  bool gate_bias_is_row = false;
  // The key with the number of depths of multi-token prediction, which stand as further layers; empty: it has none.
  std::string mtp = {};
  // Further differences of names: each pair's first, where a name of ours has it, becomes the second.
  std::vector<std::pair<std::string, std::string>> renamed = {};
  // Matrices of ours that are one of theirs, one above the other: the end of theirs, those of ours.
  struct Joined {
    std::string theirs;
    std::vector<std::string> ours;
  };
  std::vector<Joined> joined = {};
  // Experts of a layer are packed always (ExpertForm::packed), under these names behind the layer's; empty: they may
  // be.
  std::string packed_in = {}, packed_out = {};
  // --- of a plugin's kind of model (orthant/family.h)
  std::string kind = "decoder";  // model.kind
  std::string plugin = {};       // that brings it; empty: the core does
  // The name of a parameter of ours there, in place of all of the above; undefined: those hold.
  std::function<std::string(const Settings&, const std::string&)> theirs = {};
  // Further names of tensors of theirs: the tensor, the name.
  std::function<std::vector<std::pair<std::string, std::string>>(const Settings&)> copies = {};
};
// Never dangling: those of plugins are made anew where somebody asks for them.
using FamilyPtr = std::shared_ptr<const Family>;

// Whether an export has no other form of experts.
inline bool packs_always(const Family& family) {
  return family.names == MoeNames::gpt_oss || !family.packed_in.empty();
}

// Of the core's own kind of model. A model that several of them can say is written as the first.
std::span<const Family> families();

// Null: there is none.
const Family* find_family(const std::string& model_type);

}  // namespace orthant
