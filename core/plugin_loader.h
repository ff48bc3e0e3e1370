// Finds, checks and opens plugin libraries.
//
// Search for plugin NAME: the path in the configuration; each directory of ORTHANT_PLUGIN_PATH; orthant/plugins
// beside liborthant.so. The file is liborthant_plugin_NAME.so. The library's C entry is read and its ABI version and
// build string compared before any virtual call. Libraries stay open (RTLD_NODELETE) for the life of the process.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include <orthant/plugin.h>

namespace orthant {

struct LoadedPlugin {
  std::filesystem::path file;
  const orthant_plugin* entry = nullptr;
};

using PluginPtr = std::unique_ptr<Plugin, void (*)(Plugin*)>;

// Directories searched, in order (without the configured path).
std::vector<std::filesystem::path> plugin_directories();

// The file of a library of this kind ("plugin", "communicator", "device"): liborthant_KIND_NAME.so.
std::string library_file(const std::string& kind, const std::string& name);

// The libraries of a kind whose files lie in `directory`, by name. `failed`: why it could not be read.
std::map<std::string, std::filesystem::path> libraries_in(const std::filesystem::path& directory,
                                                          const std::string& kind, std::error_code* failed = nullptr);

// Errors: ConfigError listing every path tried with the reason, or naming what differs in build or ABI.
LoadedPlugin load_plugin(const std::string& name, const std::string& configured_path);

// Opens one file and checks its entry. Errors: ConfigError.
LoadedPlugin open_plugin(const std::filesystem::path& file);

// A new Plugin object. Errors: ConfigError with what the plugin said.
PluginPtr create_plugin(const LoadedPlugin& plugin);

// The keys that a requested plugin declares, for the configuration.
std::vector<KeySpec> plugin_keys(const std::string& name, const std::string& configured_path);

// A library that is not a plugin of an axis (a communicator, a device): `file_stem` in the same directories.
// Returns the address of `symbol`. Errors: ConfigError listing every path tried.
void* load_symbol(const std::string& file_stem, const std::string& symbol);

}  // namespace orthant
