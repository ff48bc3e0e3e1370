// make_device: "cpu" and "guarded" are built in, any other name is a library found at run time.
#include "core/cpu/make_device.h"

#include <dlfcn.h>

#include <orthant/build_id.h>
#include <orthant/device.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <vector>

namespace orthant {
namespace {

// What a device library exports. The first is ORTHANT_HEADERS_HASH as it was compiled with. The second, where it is
// there, throws Error if there is no such device on this machine.
using BuildFunction = const char* (*)();
using CheckFunction = void (*)();
using CreateFunction = Device* (*)(int threads);

struct Library {
  CheckFunction check;  // or null
  CreateFunction create;
};

// Why dlopen refused `file`.
std::string refusal(const std::string& file) {
  const std::string reason = dlerror();
  std::error_code unknown;
  if (!std::filesystem::exists(file, unknown)) {
    return "no such file";
  }
  if (reason.find("cannot open shared object file") == std::string::npos) {
    return reason;
  }
  return reason +
         ". The file is there: what it needs is not. Libraries of the CUDA Toolkit are found by LD_LIBRARY_PATH, "
         "for instance /usr/local/cuda/lib64";
}

Library load_device(const std::string& name) {
  std::string tried;
  for (const std::filesystem::path& folder : device_folders()) {
    const std::string file = folder.string() + "/liborthant_device_" + name + ".so";
    void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) {
      tried += fmt::format("\n  {}: {}", file, refusal(file));
      continue;
    }
    const auto build = reinterpret_cast<BuildFunction>(dlsym(library, "orthant_device_build"));
    const auto create = reinterpret_cast<CreateFunction>(dlsym(library, "orthant_device_create"));
    if (build == nullptr || create == nullptr) {
      tried += fmt::format("\n  {}: exports no orthant_device_build and orthant_device_create", file);
    } else if (std::string_view(build()) != ORTHANT_HEADERS_HASH) {
      tried += fmt::format("\n  {}: built against headers {}, this library has {}: rebuild it", file, build(),
                           ORTHANT_HEADERS_HASH);
    } else {
      return {reinterpret_cast<CheckFunction>(dlsym(library, "orthant_device_check")), create};
    }
  }
  throw ConfigError(
      fmt::format("device \"{}\" is not available. \"cpu\" and \"guarded\" are built in; tried for others "
                  "(ORTHANT_PLUGIN_PATH, then beside the library):{}",
                  name, tried));
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
