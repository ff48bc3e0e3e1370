#include "core/modules/open_library.h"

#include <dlfcn.h>
#include <orthant/abi/groups.h>
#include <orthant/error.h>
#include <orthant/library_note.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "core/base/build.h"
#include "core/modules/read_library.h"

namespace orthant {

std::string source_of_note(const std::string& kind) {
  return kind == "plugin"         ? "ORTHANT_PLUGIN(\"name\", Class)"
         : kind == "communicator" ? "ORTHANT_COMMUNICATOR(\"name\", make)"
         : kind == "module"       ? "ORTHANT_OWN_MODULE(\"name\", Interface, Class)"
                                  : "ORTHANT_DEVICE(\"name\", make, check)";
}

namespace {

namespace fs = std::filesystem;

struct HeaderGroup {
  const char *name, *hash, *headers;
};
constexpr HeaderGroup header_groups[] = {ORTHANT_HEADER_GROUPS};

constexpr const char* tree_group = "tree";  // core/modules/tree_note.h

// A line for each group that the library was compiled with and that is another one here; empty where it fits.
std::string changed_headers(const std::map<std::string, std::string>& built_with) {
  if (built_with.empty()) {
    return "\n    it names none";
  }
  std::string lines;
  for (const auto& [name, hash] : built_with) {
    if (name == tree_group) {
      continue;
    }
    const auto* here = std::find_if(std::begin(header_groups), std::end(header_groups),
                                    [&name = name](const HeaderGroup& group) { return group.name == name; });
    if (here == std::end(header_groups)) {
      lines += fmt::format("\n    {}: built with {}, there is no such group here", name, hash);
    } else if (here->hash != hash) {
      lines += fmt::format("\n    {} ({}): built with {}, here {}", name, here->headers, hash, here->hash);
    }
  }
  return lines;
}

void check_note(const fs::path& file, const std::optional<LibraryNote>& note, const std::string& kind,
                std::uint32_t abi) {
  if (!note) {
    throw ConfigError(
        fmt::format("{} is not an Orthant {}: it has no note of Orthant's. End its source with {}, and build it "
                    "against these headers",
                    file.string(), kind, source_of_note(kind)));
  }
  if (note->kind != kind) {
    const char* advice = kind == "module"               ? ": put back the one that was built with liborthant.so"
                         : note->kind == "module"       ? ": it is no part of a run, and nobody names it"
                         : note->kind == "communicator" ? ": name it in run.communicator, and try it by training"
                         : note->kind == "device"       ? ": name it in run.device"
                                                        : ": write [plugins.NAME] with its path";
    throw ConfigError(fmt::format("{} is a {}, not a {}{}", file.string(), note->kind, kind, advice));
  }
  if (note->abi != abi) {
    throw ConfigError(
        fmt::format("{} speaks {} ABI {}, this Orthant speaks {}: rebuild it", file.string(), kind, note->abi, abi));
  }
  if (note->build != ORTHANT_BUILD) {
    throw ConfigError(fmt::format(
        "{} {} was built with\n    {}\nthis Orthant with\n    {}\nRebuild it against the installed headers, "
        "with the same compiler",
        kind, file.string(), note->build, ORTHANT_BUILD));
  }
  const auto tree = note->headers.find(tree_group);
  if (tree != note->headers.end() ? tree->second != build_of_library() : kind == "module") {
    throw ConfigError(fmt::format(
        "{} {} was built with other headers of the tree than liborthant.so ({} and {}): build or install both again",
        kind, file.string(), tree != note->headers.end() ? tree->second : "it names none", build_of_library()));
  }
  const std::string changed = changed_headers(note->headers);
  if (!changed.empty()) {
    throw ConfigError(
        fmt::format("{} {} was built with other public headers than those of this Orthant:{}\nRebuild it against the "
                    "installed headers",
                    kind, file.string(), changed));
  }
}

// dlerror's words. Where it is not the file itself that is missing, it is something that it needs.
std::string refusal() {
  std::string reason = dlerror();
  if (reason.find("cannot open shared object file") != std::string::npos) {
    reason +=
        ". The file is there: what it needs is not. Libraries of the CUDA Toolkit are found by LD_LIBRARY_PATH, "
        "for instance /usr/local/cuda/lib64";
  }
  return reason;
}

}  // namespace

void* open_library(const fs::path& file, const std::string& kind, std::uint32_t abi) {
  check_note(file, read_library(read_library_file(file)), kind, abi);
  dlerror();
  // A path, also where `file` is a bare name: that would be searched for elsewhere.
  void* handle = dlopen(fs::absolute(file).c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  require(handle != nullptr, "{}", handle == nullptr ? refusal() : "");
  return handle;
}

}  // namespace orthant
