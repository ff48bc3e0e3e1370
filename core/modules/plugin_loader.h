// Finds, checks and opens plugin libraries.
//
// Search for plugin NAME: the path in the configuration; each directory of ORTHANT_PLUGIN_PATH; orthant/plugins
// beside liborthant.so. The file is liborthant_plugin_NAME.so. Its content, ABI version and build string are checked
// before it is opened (core/modules/). Libraries stay open (RTLD_NODELETE) for the life of the process.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <orthant/communicator_plugin.h>
#include <orthant/plugin.h>

namespace orthant {

struct LoadedPlugin {
  std::filesystem::path file;
  const orthant_plugin* entry = nullptr;
};

using PluginPtr = std::unique_ptr<Plugin, void (*)(Plugin*)>;

// Directories searched, in order (without the configured path).
std::vector<std::filesystem::path> plugin_directories();

// Errors: ConfigError listing every path tried with the reason, or naming what differs in build or ABI.
LoadedPlugin load_plugin(const std::string& name, const std::string& configured_path);

// Opens one file and checks its entry. Errors: ConfigError.
LoadedPlugin open_plugin(const std::filesystem::path& file);

// A new Plugin object. Errors: ConfigError with what the plugin said.
PluginPtr create_plugin(const LoadedPlugin& plugin);

// The keys that a requested plugin declares, for the configuration.
std::vector<KeySpec> plugin_keys(const std::string& name, const std::string& configured_path);

// Lets a plugin add its kinds to a catalogue. `table`: its whole table.
void add_plugin_kinds(const std::string& name, const std::string& configured_path, const Table& table,
                      Catalogue& catalogue);

// The entry of the communicator `name`, searched for in the same directories. Errors: ConfigError listing every path
// tried, or naming what differs in build or ABI.
const orthant_communicator* communicator_entry(const std::string& name);

}  // namespace orthant
