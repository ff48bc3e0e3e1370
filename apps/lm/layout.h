// The layout by which generation divides a model among ranks: plugins, as training has them.
//
// Every rank is given the same tokens. So an axis that divides the batch in training divides weights alone here
// (shards, experts).
#pragma once

#include <string>
#include <vector>

#include "core/config/config.h"

namespace orthant {

// where: "run", the plugins of `config`, or a configuration file, whose other tables are not looked at.
// Errors: ConfigError where it names no plugin; those of load_config.
std::vector<PluginRequest> layout_of(const std::string& where, const Config& config, const PluginKeys& plugin_keys,
                                     const PluginKinds& plugin_kinds);

// What `config` becomes where its model is fed token by token: nothing is trained, and no expert has a capacity.
// layout: its plugins; none: one rank. Errors: ConfigError for a router whose choices depend on later tokens, and where
// a plugin refuses its table.
Config for_generation(Config config, const std::vector<PluginRequest>& layout);

// The ranks of a configuration that for_generation made. Nothing is loaded. Errors: ConfigError for an axis that keys
// and values of a token cannot be divided along, for models apart from each other, for sizes that do not divide.
int generation_ranks(const Config& config);

}  // namespace orthant
