// A file that appears under its name only when it is complete.
#pragma once

#include <cstddef>
#include <filesystem>
#include <initializer_list>
#include <span>
#include <string_view>

namespace orthant {

// Writes NAME.partial, then renames it. Errors: Error when it cannot be written; nothing is left then.
void write_file(const std::filesystem::path& path, std::initializer_list<std::span<const std::byte>> pieces);
void write_file(const std::filesystem::path& path, std::string_view text);

}  // namespace orthant
