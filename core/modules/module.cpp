#include "core/modules/module.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <sstream>

#include "core/base/build_on_use.h"
#include "core/config/suggest.h"
#include "core/modules/find_library.h"
#include "core/modules/open_library.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

using Message = std::array<char, 4096>;

// The entry of an opened library.
Module entry_of(const std::string& kind, const fs::path& file, void* handle) {
  void* symbol = dlsym(handle, "orthant_module_entry");
  const auto* entry = symbol == nullptr ? nullptr : reinterpret_cast<const orthant_module* (*)()>(symbol)();
  if (entry == nullptr) {
    throw ConfigError(fmt::format("{} is not an Orthant {}: it exports no orthant_module_entry. End its source with {}",
                                  file.string(), kind, source_of_note(kind)));
  }
  return {kind, file, entry};
}

// Where liborthant.so itself lies.
fs::path library_directory() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&module_folders), &info) != 0 && info.dli_fname != nullptr) {
    std::error_code failed;
    fs::path file = fs::canonical(info.dli_fname, failed);
    if (!failed) {
      return file.parent_path();
    }
  }
  return fs::current_path();
}

// " (did you mean 'data'?)" where a module of nearly this name is found.
std::string did_you_mean(const std::string& kind, const std::string& name) {
  std::vector<std::string> known;
  for (const fs::path& folder : module_folders()) {
    for (const auto& [module, file] : libraries_in(folder, kind)) {
      known.push_back(module);
    }
  }
  const auto near = nearest(name, known);
  return near.has_value() && *near != name ? fmt::format(" (did you mean '{}'?)", *near) : "";
}

// Builds what lies nowhere yet, or too old, and has a build folder, where no folder before that one has the file.
void build_own(const std::string& kind, const std::string& name) {
  const std::string file = library_file(kind, name);
  for (const fs::path& folder : module_folders()) {
    if (folder == own_plugins()) {
      return build_on_use(folder / file, "orthant_" + kind + "_" + name);
    }
    if (fs::exists(folder / file)) {
      return;
    }
  }
}

}  // namespace

fs::path own_plugins() {
  return library_directory() / "orthant" / "plugins";
}

std::vector<fs::path> module_folders() {
  std::vector<fs::path> folders;
  if (const char* variable = std::getenv("ORTHANT_PLUGIN_PATH")) {
    std::stringstream list(variable);
    for (std::string part; std::getline(list, part, ':');) {
      if (!part.empty()) {
        folders.emplace_back(part);
      }
    }
  }
  folders.push_back(own_plugins());
  folders.push_back(library_directory());
  return folders;
}

bool module_exists(const std::string& kind, const std::string& name) {
  const std::vector<fs::path> folders = module_folders();
  return std::any_of(folders.begin(), folders.end(),
                     [&](const fs::path& folder) { return fs::exists(folder / library_file(kind, name)); });
}

Module open_module(const std::string& kind, const fs::path& file) {
  try {
    return entry_of(kind, file, open_library(file, kind, ORTHANT_ABI));
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {
    throw ConfigError(fmt::format("cannot load {} {}: {}", kind, file.string(), error.what()));
  }
}

Module find_module(const std::string& kind, const std::string& name, const std::string& configured_path) {
  if (!configured_path.empty()) {
    return open_module(kind, configured_path);
  }
  build_own(kind, name);
  std::string tried;
  if (const auto found = open_first(kind, name, ORTHANT_ABI, module_folders(), tried)) {
    return entry_of(kind, found->file, found->handle);
  }
  const std::string advice =
      kind == "plugin"   ? fmt::format("Give its file as path = \"...\" in [plugins.{}], or add", name)
      : kind == "module" ? std::string("Build and install it together with liborthant.so, or add")
                         : std::string("Add");
  throw ConfigError(fmt::format("no {} '{}' can be loaded{}. Tried:{}\n{} its directory to ORTHANT_PLUGIN_PATH", kind,
                                name, did_you_mean(kind, name), tried, advice));
}

std::string refusal_of(const Module& module) {
  Message error{};
  const bool usable =
      module.entry->check == nullptr || module.entry->check(error.data(), static_cast<std::uint32_t>(error.size()));
  return usable ? "" : error.data();
}

void* create_object(const Module& module, const void* config) {
  Message error{};
  void* object = module.entry->create(config, error.data(), static_cast<std::uint32_t>(error.size()));
  if (object == nullptr && module.kind == "plugin") {
    throw ConfigError(fmt::format("plugin '{}' ({}) could not be created: {}", module.entry->name, module.file.string(),
                                  error.data()));
  }
  require(object != nullptr, "{} '{}' cannot start: {}", module.kind, module.entry->name, error.data());
  return object;
}

// What a plugin's code throws, with its name; its refusals as they are.
template <class Call>
auto called(const Module& plugin, const char* what, Call call) {
  const auto failed = [&](const std::string& reason) {
    return ConfigError(
        fmt::format("plugin '{}' ({}) fails in {}: {}", plugin.entry->name, plugin.file.string(), what, reason));
  };
  try {
    return call();
  } catch (const ConfigError&) {
    throw;
  } catch (const std::exception& failure) {
    throw failed(failure.what());
  } catch (...) {
    throw failed("it throws what is no std::exception");
  }
}

std::vector<KeySpec> plugin_keys(const std::string& name, const std::string& configured_path) {
  const Module module = find_module("plugin", name, configured_path);
  return called(module, "keys()", [&] { return create<Plugin>(module)->keys(); });
}

void add_plugin_kinds(const std::string& name, const std::string& configured_path, const Table& table,
                      Catalogue& catalogue) {
  const Module module = find_module("plugin", name, configured_path);
  try {
    called(module, "add_to()", [&] { create<Plugin>(module)->add_to(catalogue, table); });
  } catch (const ConfigError& refused) {
    if (name == module.entry->name) {
      throw;
    }
    throw ConfigError(fmt::format("{}. Its library, {}, is plugin '{}': write [plugins.{}], or the path of another one",
                                  refused.what(), module.file.string(), module.entry->name, module.entry->name));
  }
}

}  // namespace orthant
