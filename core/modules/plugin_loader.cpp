#include "core/modules/plugin_loader.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <sstream>

#include "core/config/suggest.h"
#include "core/modules/find_library.h"
#include "core/modules/open_library.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

using Entry = const orthant_plugin* (*)();

LoadedPlugin check_entry(const fs::path& file, void* handle) {
  void* symbol = dlsym(handle, "orthant_plugin_entry");
  if (symbol == nullptr) {
    throw ConfigError(
        fmt::format("{} is not an Orthant plugin: it exports no orthant_plugin_entry. End its source with "
                    "ORTHANT_PLUGIN(\"name\", Class)",
                    file.string()));
  }
  const orthant_plugin* entry = reinterpret_cast<Entry>(symbol)();
  if (entry == nullptr || entry->struct_size < sizeof(orthant_plugin)) {
    throw ConfigError(fmt::format("{}: its entry is too small ({} bytes, expected at least {}): rebuild the plugin",
                                  file.string(), entry == nullptr ? 0 : entry->struct_size, sizeof(orthant_plugin)));
  }
  return {file, entry};
}

// Where liborthant.so itself lies.
fs::path library_directory() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&plugin_directories), &info) != 0 && info.dli_fname != nullptr) {
    std::error_code failed;
    fs::path file = fs::canonical(info.dli_fname, failed);
    if (!failed) {
      return file.parent_path();
    }
  }
  return fs::current_path();
}

// " (did you mean 'data'?)" where a plugin of nearly this name is found.
std::string did_you_mean(const std::string& name) {
  std::vector<std::string> known;
  for (const fs::path& directory : plugin_directories()) {
    for (const auto& [plugin, file] : libraries_in(directory, "plugin")) {
      known.push_back(plugin);
    }
  }
  const auto near = nearest(name, known);
  return near.has_value() && *near != name ? fmt::format(" (did you mean '{}'?)", *near) : "";
}

}  // namespace

std::vector<fs::path> plugin_directories() {
  std::vector<fs::path> directories;
  if (const char* variable = std::getenv("ORTHANT_PLUGIN_PATH")) {
    std::stringstream list(variable);
    for (std::string part; std::getline(list, part, ':');) {
      if (!part.empty()) {
        directories.emplace_back(part);
      }
    }
  }
  directories.push_back(library_directory() / "orthant" / "plugins");
  return directories;
}

LoadedPlugin open_plugin(const fs::path& file) {
  try {
    return check_entry(file, open_library(file, "plugin", plugin_abi));
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {
    throw ConfigError(fmt::format("cannot load plugin {}: {}", file.string(), error.what()));
  }
}

LoadedPlugin load_plugin(const std::string& name, const std::string& configured_path) {
  if (!configured_path.empty()) {
    return open_plugin(configured_path);
  }
  std::string tried;
  if (const auto found = open_first("plugin", name, plugin_abi, plugin_directories(), tried)) {
    return check_entry(found->file, found->handle);
  }
  throw ConfigError(
      fmt::format("no plugin '{}' can be loaded{}. Tried:{}\nGive its file as path = \"...\" in [plugins.{}], or "
                  "add its directory to ORTHANT_PLUGIN_PATH",
                  name, did_you_mean(name), tried, name));
}

PluginPtr create_plugin(const LoadedPlugin& plugin) {
  std::array<char, 512> error{};
  Plugin* object = plugin.entry->create(error.data(), static_cast<std::uint32_t>(error.size()));
  if (object == nullptr) {
    throw ConfigError(fmt::format("plugin '{}' ({}) could not be created: {}", plugin.entry->name, plugin.file.string(),
                                  error.data()));
  }
  return PluginPtr(object, plugin.entry->destroy);
}

std::vector<KeySpec> plugin_keys(const std::string& name, const std::string& configured_path) {
  return create_plugin(load_plugin(name, configured_path))->keys();
}

void add_plugin_kinds(const std::string& name, const std::string& configured_path, const Table& table,
                      Catalogue& catalogue) {
  create_plugin(load_plugin(name, configured_path))->add_to(catalogue, table);
}

const orthant_communicator* communicator_entry(const std::string& name) {
  std::string tried;
  const auto found = open_first("communicator", name, communicator_abi, plugin_directories(), tried);
  if (!found) {
    throw ConfigError(fmt::format("communicator '{}' cannot be loaded. Tried:{}", name, tried));
  }
  void* symbol = dlsym(found->handle, "orthant_communicator_entry");
  const auto* entry = symbol == nullptr ? nullptr : reinterpret_cast<const orthant_communicator* (*)()>(symbol)();
  if (entry == nullptr || entry->struct_size < sizeof(orthant_communicator)) {
    throw ConfigError(
        fmt::format("{}: it exports no whole orthant_communicator_entry: rebuild it", found->file.string()));
  }
  return entry;
}

}  // namespace orthant
