#include "core/plugin_loader.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <sstream>

#include "core/config/suggest.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

using Entry = const orthant_plugin* (*)();

// dlerror's words, or "" after success.
std::string try_open(const fs::path& file, void*& handle) {
  std::error_code ignored;
  if (!fs::exists(file, ignored)) {
    return "no such file";
  }
  if (!fs::is_regular_file(file, ignored) && !fs::is_directory(file, ignored)) {
    return "not a regular file";  // the loader would wait for a pipe's other end
  }
  dlerror();
  handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  return handle == nullptr ? std::string(dlerror()) : std::string();
}

LoadedPlugin check_entry(const fs::path& file, void* handle) {
  void* symbol = dlsym(handle, "orthant_plugin_entry");
  if (symbol == nullptr && dlsym(handle, "orthant_communicator_entry") != nullptr) {
    throw ConfigError(
        fmt::format("{} is a communicator, not a plugin of an axis: name it in run.communicator, and try "
                    "it by training",
                    file.string()));
  }
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
  if (entry->abi != plugin_abi) {
    throw ConfigError(fmt::format("plugin '{}' ({}) speaks plugin ABI {}, this Orthant speaks {}: rebuild the plugin",
                                  entry->name, file.string(), entry->abi, plugin_abi));
  }
  if (std::strcmp(entry->build, ORTHANT_BUILD) != 0) {
    throw ConfigError(fmt::format(
        "plugin '{}' ({}) was built with\n    {}\nthis Orthant with\n    {}\nRebuild the plugin against the "
        "installed headers, with the same compiler",
        entry->name, file.string(), entry->build, ORTHANT_BUILD));
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

std::string library_file(const std::string& kind, const std::string& name) {
  return "liborthant_" + kind + "_" + name + ".so";
}

std::map<std::string, fs::path> libraries_in(const fs::path& directory, const std::string& kind,
                                             std::error_code* failed) {
  const std::string prefix = "liborthant_" + kind + "_", suffix = ".so";
  std::map<std::string, fs::path> found;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, failed == nullptr ? ignored : *failed)) {
    const std::string file = entry.path().filename().string();
    if (file.starts_with(prefix) && file.ends_with(suffix)) {
      found[file.substr(prefix.size(), file.size() - prefix.size() - suffix.size())] = entry.path();
    }
  }
  return found;
}

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
  void* handle = nullptr;
  const std::string error = try_open(file, handle);
  if (!error.empty()) {
    throw ConfigError(fmt::format("cannot load plugin {}: {}", file.string(), error));
  }
  return check_entry(file, handle);
}

LoadedPlugin load_plugin(const std::string& name, const std::string& configured_path) {
  if (!configured_path.empty()) {
    return open_plugin(configured_path);
  }
  std::string tried;
  for (const fs::path& directory : plugin_directories()) {
    const fs::path file = directory / library_file("plugin", name);
    void* handle = nullptr;
    const std::string error = try_open(file, handle);
    if (error.empty()) {
      return check_entry(file, handle);
    }
    tried += fmt::format("\n    {}: {}", file.string(), error);
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

void* load_symbol(const std::string& file_stem, const std::string& symbol) {
  std::string tried;
  for (const fs::path& directory : plugin_directories()) {
    const fs::path file = directory / (file_stem + ".so");
    void* handle = nullptr;
    std::string error = try_open(file, handle);
    if (error.empty()) {
      if (void* address = dlsym(handle, symbol.c_str())) {
        return address;
      }
      error = "exports no " + symbol;
    }
    tried += fmt::format("\n    {}: {}", file.string(), error);
  }
  throw ConfigError(fmt::format("{} cannot be loaded. Tried:{}", file_stem, tried));
}

}  // namespace orthant
