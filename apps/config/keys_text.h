// The keys that a configuration may hold, as text.
#pragma once

#include <orthant/catalogue.h>
#include <orthant/table.h>

#include <string>
#include <utility>
#include <vector>

namespace orthant {

// A plugin's name and its keys.
using PluginKeyList = std::vector<std::pair<std::string, std::vector<KeySpec>>>;

// A JSON schema (draft 2020-12) of the core's keys, those of the catalogue's kinds and the plugins' keys, for editors.
// Plugins that are not named may hold any key.
std::string schema_json(const PluginKeyList& plugins, const Catalogue& catalogue = *built_in_catalogue());

// One key as a row of a Markdown table; with the line's end.
std::string key_row(const KeySpec& spec);

// The core's keys and those of the catalogue's kinds as Markdown tables: of the core's own kinds the reference in
// docs/reference/configuration.md.
std::string keys_markdown(const Catalogue& catalogue = *built_in_catalogue());

}  // namespace orthant
