// The kinds of the catalogue that a configuration names: a gate, an optimizer, ...
#pragma once

#include <set>
#include <string>
#include <vector>

#include "core/config/config.h"
#include "core/config/diagnostics.h"
#include "core/config/registry.h"

namespace orthant {

// Refuses the names that are written and that nothing in the catalogue has. `broken`: gains their keys.
// REQUIRES: config.settings.catalogue has the kinds of every plugin.
void check_kinds(const Config& config, const std::vector<CoreKey>& keys, std::set<std::string>& broken,
                 Diagnostics& diagnostics);

// Where moe.top_k is 0, what the gate implies. A gate that the catalogue lacks implies 2.
void imply_top_k(Config& config);

// What nobody wrote of data.source = "chat" and "pairs": documents = "packed", as conversations are no stream, and with
// bytes, which have no tokens of their own for roles, chat_template = "plain".
void imply_chat(Config& config);

// Where data.validation_path names sets and nobody wrote data.validation_fraction: nothing is held out of the data.
void imply_validation(Config& config);

// Where model.vocab_size is 0, what the source says. Refused where it says none; `broken` gains the key then.
void imply_vocabulary(Config& config, std::set<std::string>& broken, Diagnostics& diagnostics);

// The value of a key that is there, as if somebody had written it. origin: where it comes from; empty: as it was.
void set_entry(Config& config, const std::string& title, const std::string& key, Value value,
               const std::string& origin = {});

}  // namespace orthant
