// Plugin: one axis of parallelism (or an offload) in a shared library of its own.
//
// A plugin implements Plugin and ends with ORTHANT_PLUGIN(name, Class). It includes only <orthant/...> headers, keeps
// no globals, and touches a step only through the seams it binds. See docs/plugins.md.
//
// Lifetime: the loader opens the library once and never closes it; one Plugin object per rank, destroyed after the
// Plan that it edited. Exceptions of Plugin's methods reach the core as they are; none may leave `create`.
#pragma once

#include <cstdint>
#include <cstring>
#include <exception>
#include <vector>

#include <orthant/catalogue.h>
#include <orthant/library_note.h>
#include <orthant/mesh.h>
#include <orthant/plan.h>
#include <orthant/table.h>

namespace orthant {

class Plugin {
 public:
  virtual ~Plugin() = default;
  // The keys of [plugins.NAME] besides `path`. Called before the configuration is checked.
  virtual std::vector<KeySpec> keys() const = 0;
  // Adds its gates, optimizers, ... to the catalogue, so that the configuration can name them. Called each time that a
  // configuration is loaded, once the table is checked, on an object of its own. Errors: ConfigError.
  virtual void add_to(Catalogue& /*catalogue*/, const Table& /*config*/) {}
  // Phase 1: how many ranks, which dims. Errors: ConfigError.
  virtual void claim(Mesh& mesh, const Table& config) = 0;
  // Phase 2, after every plugin's claim: bind seams. Then the core owns the step. Must also work in a dry run.
  virtual void plan(Plan& plan, Mesh& mesh) = 0;
};

// Version of the interfaces in these headers.
inline constexpr std::uint32_t plugin_abi = ORTHANT_PLUGIN_ABI;

}  // namespace orthant

extern "C" {
// What a plugin library exports, as plain C so that it can be read before any virtual call.
// Fields are only ever appended; struct_size says how many a plugin knows.
struct orthant_plugin {
  std::uint32_t struct_size;
  std::uint32_t abi;
  const char* build;
  const char* name;
  orthant::Plugin* (*create)(char* error, std::uint32_t error_size) noexcept;
  void (*destroy)(orthant::Plugin*) noexcept;
};
}

#define ORTHANT_PLUGIN(NAME, CLASS)                                                                               \
  ORTHANT_LIBRARY_NOTE("plugin", ORTHANT_PLUGIN_ABI)                                                              \
  extern "C" __attribute__((visibility("default"))) const orthant_plugin* orthant_plugin_entry();                 \
  extern "C" const orthant_plugin* orthant_plugin_entry() {                                                       \
    static const orthant_plugin entry = {sizeof(orthant_plugin),                                                  \
                                         orthant::plugin_abi,                                                     \
                                         ORTHANT_BUILD,                                                           \
                                         NAME,                                                                    \
                                         [](char* error, std::uint32_t error_size) noexcept -> orthant::Plugin* { \
                                           try {                                                                  \
                                             return new CLASS();                                                  \
                                           } catch (const std::exception& e) {                                    \
                                             std::strncpy(error, e.what(), error_size - 1);                       \
                                             error[error_size - 1] = '\0';                                        \
                                             return nullptr;                                                      \
                                           }                                                                      \
                                         },                                                                       \
                                         [](orthant::Plugin* plugin) noexcept { delete plugin; }};                \
    return &entry;                                                                                                \
  }
