// The one way to open a library at run time: checked from its file first, so that nothing of a library that is cut
// short, damaged or built otherwise runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace orthant {

// How the source of a module of this kind ends: "ORTHANT_PLUGIN(\"name\", Class)".
std::string source_of_note(const std::string& kind);

// `kind`: "plugin", "communicator", "device", "module"; `abi`: the version of its interface here. Returns the handle of
// dlopen; the library stays open for the life of the process. Errors: Error with the reason, without the file's name,
// where it cannot be read, is damaged or cannot be linked. ConfigError, with the file's name, for a sound library of
// another kind, ABI or build.
void* open_library(const std::filesystem::path& file, const std::string& kind, std::uint32_t abi);

}  // namespace orthant
