// Config: a configuration that was read, checked and completed; every value remembers where it was written.
//
//   Config config = load_config("configs/quickstart.toml", {"run.steps=10"}, plugin_keys);
//
// The syntax is described in docs/reference/configuration.md.
#pragma once

#include <orthant/settings.h>
#include <orthant/table.h>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/config/diagnostics.h"
#include "core/config/sources.h"

namespace orthant {

// A [plugins.NAME] table.
struct PluginRequest {
  std::string name;       // NAME
  std::string path;       // the library to load, absolute; empty: found by name
  Table table;            // its values; empty while the keys are asked for
  std::string origin;     // of the table's header
  bool path_set = false;  // `path` was given by an override, not by a file
  bool checked = true;    // false: the plugin was not asked for its keys, and the table holds what was written
};

struct Config {
  std::string file;                    // the main file, as the caller named it
  Settings settings;                   // the core's values, typed
  std::vector<Table> tables;           // the same values with their origins, in the registry's order
  std::vector<PluginRequest> plugins;  // in the order written: outer axis first
  std::shared_ptr<const Sources> sources;
  std::map<std::string, std::vector<std::string>> element_origins;  // of the lists somebody wrote, by "table.key"

  // The table of the core or of a plugin: "run", "plugins.data". Errors: Error where there is none.
  const Table& table(const std::string& title) const;

  // Where the value of "table.key" or "plugins.NAME.key" was written; "default" when nobody wrote it.
  const std::string& origin(const std::string& path) const;

  // The same, but of another key of its table that somebody wrote where nobody wrote this one.
  const std::string& nearest_origin(const std::string& path) const;

  // For checks that come after loading; it shares `sources`.
  Diagnostics diagnostics() const { return Diagnostics(sources); }
};

// The keys that a plugin declares; nothing where it shall not be asked. May throw Error (no such library, ...):
// reported at the plugin's table.
using PluginKeys = std::function<std::optional<std::vector<KeySpec>>(const PluginRequest&)>;

// Lets a plugin add its kinds; the request's table is whole. May throw Error: reported at the plugin's table.
using PluginKinds = std::function<void(const PluginRequest&, Catalogue&)>;

// Asked to add its problems to those that loading found, where all values could be read. Errors: RefusedConfig with
// them; of others nothing is reported, as they may come of what was refused already.
using FurtherCheck = std::function<void(const Config&)>;

// Reads `file`, what it extends and the `overrides` ("a.b=c"), and checks everything.
// Errors: ConfigError with every problem at once.
Config load_config(const std::string& file, const std::vector<std::string>& overrides, const PluginKeys& plugin_keys,
                   const PluginKinds& plugin_kinds = {}, const FurtherCheck& layout_check = {});

}  // namespace orthant
