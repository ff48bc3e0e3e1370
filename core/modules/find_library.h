// Libraries by name: what they are called, which lie in a folder, the first of several folders that has it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

namespace orthant {

// The file of a library of this kind ("plugin", "communicator", "device", "module"): liborthant_KIND_NAME.so.
std::string library_file(const std::string& kind, const std::string& name);

// The libraries of a kind whose files lie in `directory`, or will when they are built (FILE.about), by name. `failed`:
// why it could not be read.
std::map<std::string, std::filesystem::path> libraries_in(const std::filesystem::path& directory,
                                                          const std::string& kind, std::error_code* failed = nullptr);

struct OpenLibrary {
  std::filesystem::path file;
  void* handle = nullptr;
};

// Opens the library of this name in the first of the directories that has such a file. `tried`: a line for each file
// that is not there. Errors: ConfigError for a file that cannot be opened or is another's (open_library): the search
// ends there, as a library further on may be quite another.
std::optional<OpenLibrary> open_first(const std::string& kind, const std::string& name, std::uint32_t abi,
                                      const std::vector<std::filesystem::path>& directories, std::string& tried);

}  // namespace orthant
