// Which parameters train, at which rates, and the adapters of [lora]: two matrices beside each one that they adapt.
//
// W [out, in] is used as W + s B A (LoraSettings::scale_for). Adapters are parameters like others. A [rank, in] is
// split as the columns of W are, B [out, rank] as its rows. Where ranks split the other dimension of W, they hold the
// same A (or B), and each has its own part of the gradient (ParamSpec::repeats). All the rest follows from that: sums,
// shards, norms, checkpoints.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/arch/links.h"

namespace orthant {

// Whether a name is one that the pattern stands for; '*' stands for anything, '?' for one character, [abc] for one of
// some.
bool matches(const std::string& pattern, const std::string& name);
bool matches_any(const std::vector<std::string>& patterns, const std::string& name);

// Whether a parameter of this layer can have an adapter: a matrix that something is multiplied by. A table whose rows
// are looked up is not.
bool adaptable(const LayerSpecs& layer, const ParamSpec& spec);

// "model.layers.0.self_attn.q_proj.lora_A.weight" for "model.layers.0.self_attn.q_proj.weight"; letter: 'A' or 'B'.
std::string adapter_name(const std::string& parameter, char letter);
bool is_adapter(const std::string& name);
// lora.alpha of a matrix's adapter, or that of lora.alpha_of.
double adapter_alpha(const LoraSettings& lora, const std::string& matrix);

// Marks what lora.targets names (ParamSpec::adapted), and puts its adapters behind its layer.
void add_adapters(std::vector<LayerSpecs>& table, const Settings& settings);
// Which of lr_of counts for a parameter: its number; nothing where none names it.
std::optional<std::size_t> rate_of(const OptimizerSettings& optimizer, const std::string& name);
// Sets ParamSpec::lr_scale of all, and takes the decay of what optimizer.no_decay names.
void set_rates(std::vector<LayerSpecs>& table, const OptimizerSettings& optimizer);
// The model without its depths of multi-token prediction, as everybody has it who does not train it: no setting names
// their parameters any more.
void leave_out_mtp(Settings& settings);
bool is_mtp(const std::string& name);  // of a parameter or a gate's state
// train.anew: whether a parameter begins anew where the checkpoint of train.from has none of its name and shape, and is
// left behind where the model has none.
bool may_begin_anew(const Settings& settings, const std::string& name);

// Sets ParamSpec::frozen of all.
void freeze(std::vector<LayerSpecs>& table, const Settings& settings);

}  // namespace orthant
