// make_device: "cpu" and "guarded" are built in, any other name is a library found at run time.
#include "core/modules/make_device.h"

#include <dlfcn.h>

#include <orthant/device.h>
#include <orthant/library_note.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <vector>

#include "core/modules/find_library.h"

namespace orthant {
namespace {

// What a device library exports, besides its note. The first, where it is there, throws Error if there is no such
// device on this machine.
using CheckFunction = void (*)();
using CreateFunction = Device* (*)(int threads);

struct Library {
  CheckFunction check;  // or null
  CreateFunction create;
};

Library load_device(const std::string& name) {
  std::string tried;
  const auto found = open_first("device", name, ORTHANT_PLUGIN_ABI, device_folders(), tried);
  if (!found) {
    throw ConfigError(
        fmt::format("device \"{}\" is not available. \"cpu\" and \"guarded\" are built in; tried for others "
                    "(ORTHANT_PLUGIN_PATH, then beside the library):{}",
                    name, tried));
  }
  const auto create = reinterpret_cast<CreateFunction>(dlsym(found->handle, "orthant_device_create"));
  if (create == nullptr) {
    throw ConfigError(fmt::format("{}: exports no orthant_device_create", found->file.string()));
  }
  return {reinterpret_cast<CheckFunction>(dlsym(found->handle, "orthant_device_check")), create};
}

}  // namespace

std::vector<std::filesystem::path> device_folders() {
  std::vector<std::filesystem::path> folders;
  if (const char* path = std::getenv("ORTHANT_PLUGIN_PATH")) {
    std::string_view rest = path;
    while (!rest.empty()) {
      const std::size_t colon = rest.find(':');
      if (colon != 0) {
        folders.emplace_back(rest.substr(0, colon));
      }
      rest = colon == std::string_view::npos ? std::string_view{} : rest.substr(colon + 1);
    }
  }
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&make_cpu_device), &info) != 0 && info.dli_fname != nullptr) {
    const std::string file = info.dli_fname;
    const std::size_t slash = file.rfind('/');
    folders.push_back(slash == std::string::npos ? "." : file.substr(0, slash));
  }
  return folders;
}

void check_device(const std::string& name) {
  if (name == "cpu" || name == "guarded") {
    return;
  }
  const Library library = load_device(name);
  if (library.check != nullptr) {
    library.check();
  }
}

std::unique_ptr<Device> make_device(const std::string& name, int threads) {
  if (name == "cpu") {
    return make_cpu_device(threads);
  }
  if (name == "guarded") {
    return make_guarded_device(threads);
  }
  return std::unique_ptr<Device>(load_device(name).create(threads));
}

}  // namespace orthant
