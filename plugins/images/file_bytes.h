// The bytes of a file that is read whole, or in part.
#pragma once

#include <orthant/error.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace orthant::images {

using Bytes = std::vector<std::uint8_t>;

// Errors: ConfigError naming the file.
inline Bytes read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = file ? static_cast<std::streamoff>(file.tellg()) : -1;
  if (size < 0) {
    throw ConfigError(fmt::format("'{}' cannot be read", path));
  }
  Bytes bytes(static_cast<std::size_t>(size));
  file.seekg(0);
  if (!file.read(reinterpret_cast<char*>(bytes.data()), size)) {
    throw ConfigError(fmt::format("'{}' cannot be read to its end, {} bytes", path, size));
  }
  return bytes;
}

// The first bytes, fewer where the file is shorter or cannot be read.
inline Bytes read_beginning(const std::string& path, std::size_t most) {
  std::ifstream file(path, std::ios::binary);
  Bytes bytes(most);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(most));
  bytes.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  return bytes;
}

}  // namespace orthant::images
