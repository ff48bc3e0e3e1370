// The tables of a configuration while it is read, and what is said of keys that no table has.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/config/config.h"
#include "core/config/diagnostics.h"
#include "core/config/toml_reader.h"

namespace orthant {

struct Section {
  std::string title;  // "run", "plugins.data"
  std::vector<KeySpec> keys = {};
  std::map<std::string, Table::Entry> written = {};
  std::string origin = {};  // of its first header
  bool unknown = false;     // the plugin's keys could not be asked for
  bool asked = true;        // or should not
  bool path_set = false;    // by an override
};

// A table or a key that stands outside of any table, and is none.
void refuse_top(const Member& top, const std::vector<Section>& core, const std::vector<Section>& plugins,
                Diagnostics& diagnostics);

// Its keys, and a plugin's path.
std::vector<std::string> names_of(const Section& section);

// A key that its table does not have.
void refuse_key(const Section& section, const Member& member, const std::vector<Section>& core,
                const std::vector<Section>& plugins, Diagnostics& diagnostics);

}  // namespace orthant
