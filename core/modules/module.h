// Finds, checks and opens modules: plugins, communicators, devices, and parts of Orthant itself: kind "module". Those
// use headers of the tree that no version protects, so they must be of the tree that the library was built of.
//
// Search for the module NAME of a KIND: a configured path, where there is one; each folder of ORTHANT_PLUGIN_PATH;
// orthant/plugins beside liborthant.so; the folder of liborthant.so itself. The file is liborthant_KIND_NAME.so. Its
// content, ABI and build are checked before it is opened. Libraries stay open (RTLD_NODELETE) for the life of the
// process.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <orthant/catalogue.h>
#include <orthant/plugin.h>

namespace orthant {

struct Module {
  std::string kind;  // "plugin", "communicator", "device", "module"
  std::filesystem::path file;
  const orthant_module* entry = nullptr;
};

// The folders that are searched, in order (without a configured path).
std::vector<std::filesystem::path> module_folders();
// The one of them in which the plugins of this Orthant lie.
std::filesystem::path own_plugins();
// Whether one of them holds such a file.
bool module_exists(const std::string& kind, const std::string& name);

// Opens one file. Errors: ConfigError with the reason.
Module open_module(const std::string& kind, const std::filesystem::path& file);
// In a build folder the first use of a module that `./launch` leaves out builds it, and the first after the library was
// built again (core/base/build_on_use.h). Errors: ConfigError listing every path tried with the reason, or naming what
// differs in build or ABI.
Module find_module(const std::string& kind, const std::string& name, const std::string& configured_path = {});

// What the module says where it cannot be used here; empty where it can.
std::string refusal_of(const Module& module);
// A new object of the module. Errors: Error with what the module said.
template <class Interface>
using ModulePtr = std::unique_ptr<Interface, void (*)(void*)>;
void* create_object(const Module& module, const void* config);
template <class Interface>
ModulePtr<Interface> create(const Module& module, const void* config = nullptr) {
  return ModulePtr<Interface>(static_cast<Interface*>(create_object(module, config)), module.entry->destroy);
}

using PluginPtr = ModulePtr<Plugin>;

// The keys that a requested plugin declares, for the configuration.
std::vector<KeySpec> plugin_keys(const std::string& name, const std::string& configured_path);
// Lets a plugin add its kinds to a catalogue. `table`: its whole table.
void add_plugin_kinds(const std::string& name, const std::string& configured_path, const Table& table,
                      Catalogue& catalogue);

}  // namespace orthant
