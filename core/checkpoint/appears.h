// Files that another host has written.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>

namespace orthant {

// Whether the path is there, of `bytes` bytes where these are given; asked again for `patience` where it is not:
// network file systems remember names and sizes for a while, and ask their server when a folder or a file is opened.
bool appears(const std::filesystem::path& path, std::chrono::steady_clock::duration patience,
             std::optional<std::uint64_t> bytes = std::nullopt);

}  // namespace orthant
