// Small text files of a run, read so that a disk that fails is no empty file.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

namespace orthant {

// Its first `longest` bytes; nothing where there is no such file. Errors: Error where it is there and cannot be read.
std::optional<std::string> read_text_file(const std::filesystem::path& path,
                                          std::size_t longest = static_cast<std::size_t>(-1));

}  // namespace orthant
