// What the file of a library says of itself, read before anything of it runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "core/modules/elf_image.h"

namespace orthant {

// The notes of <orthant/library_note.h>.
struct LibraryNote {
  std::string kind;  // "plugin", "communicator", "device"
  std::uint32_t abi = 0;
  std::string build;                           // ORTHANT_BUILD
  std::map<std::string, std::string> headers;  // by the group's name: the hash of those that it was compiled with
};

// Checks the bytes of a library: its headers (ElfImage), and its content where a checksum stands behind it, as
// orthant_add_plugin writes ("orthant-sha256:", 64 digits, a line's end). Returns what its notes say; nothing where
// none says what it is. Errors: Error with what is wrong.
std::optional<LibraryNote> read_library(Bytes file);

// The content of a regular file that may be a library. Errors: Error with the reason, without the name.
std::string read_library_file(const std::filesystem::path& file);

}  // namespace orthant
