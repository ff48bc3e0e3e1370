#include "core/data/write_file.h"

#include <orthant/error.h>

#include <fstream>
#include <system_error>

namespace orthant {

void write_file(const std::filesystem::path& path, std::initializer_list<std::span<const std::byte>> pieces) {
  std::filesystem::path partial = path;
  partial += ".partial";
  std::ofstream out(partial, std::ios::binary | std::ios::trunc);
  require(out.good(), "cannot create '{}'", partial.string());
  for (const std::span<const std::byte> piece : pieces) {
    out.write(reinterpret_cast<const char*>(piece.data()), static_cast<std::streamsize>(piece.size()));
  }
  out.close();
  if (!out) {
    std::error_code ignored;
    std::filesystem::remove(partial, ignored);
    fail("cannot write '{}': is the disk full?", partial.string());
  }
  std::filesystem::rename(partial, path);
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  write_file(path, {std::as_bytes(std::span(text))});
}

}  // namespace orthant
