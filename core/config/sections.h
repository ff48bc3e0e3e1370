// The tables of a configuration while it is read, and what is said of keys that no table has.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "core/config/config.h"
#include "core/config/diagnostics.h"
#include "core/config/toml_reader.h"

namespace orthant {

// How a key of a table is declared, whether by the core or by a plugin.
struct Declared {
  KeySpec spec;
  std::size_t length = 0;
};

struct Section {
  std::string title;  // "run", "plugins.data"
  std::vector<Declared> keys = {};
  std::map<std::string, Table::Entry> written = {};
  std::string origin = {};  // of its first header
  bool unknown = false;     // the plugin's keys could not be asked for
  bool asked = true;        // or should not
  bool path_set = false;    // by an override
};

// A table or a key that stands outside of any table, and is none.
void refuse_top(const Member& top, const std::vector<Section>& core, const std::vector<Section>& plugins,
                Diagnostics& diagnostics);

// A key that its table does not have.
void refuse_key(const Section& section, const Member& member, const std::vector<Section>& core,
                const std::vector<Section>& plugins, Diagnostics& diagnostics);

}  // namespace orthant
