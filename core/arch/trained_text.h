// What a run says of what trains in it.
#pragma once

#include <orthant/settings.h>

#include <string>
#include <vector>

namespace orthant {

// "model.layers.*.self_attn.q_proj.weight": one name for all blocks and experts.
std::string kind_of_name(const std::string& name);

// How many parameters train, and which have an adapter, a line each; empty where all train. Like "trains 3072 of 51200
// parameters (6 %)".
std::vector<std::string> trained_text(const Settings& settings);

// What optimizer.lr_of and no_decay make of how many parameters that train, a line each; empty where nobody wrote them.
std::vector<std::string> rates_text(const Settings& settings);

}  // namespace orthant
