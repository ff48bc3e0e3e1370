#include "core/modules/own_module.h"

#include "core/base/build_on_use.h"
#include "core/modules/find_library.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

// The folder that is searched first of those that have such a file, and of this build's own.
bool own_is_first(const std::string& file) {
  for (const fs::path& folder : module_folders()) {
    if (folder == own_plugins()) {
      return true;
    }
    if (fs::exists(folder / file)) {
      return false;
    }
  }
  return false;
}

}  // namespace

Module find_own_module(const std::string& name) {
  const std::string file = library_file("module", name);
  if (own_is_first(file)) {
    build_on_use(own_plugins() / file, "orthant_module_" + name);
  }
  return find_module("module", name);
}

}  // namespace orthant
