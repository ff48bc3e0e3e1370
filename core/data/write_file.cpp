#include "core/data/write_file.h"

#include <orthant/error.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "core/base/sync.h"

namespace orthant {

namespace fs = std::filesystem;

PartialFile::PartialFile(const fs::path& name) : name_(name), partial_(name) {
  partial_ += ".partial";
  errno = 0;
  out_.open(partial_, std::ios::binary | std::ios::trunc);
  if (!out_.good()) {
    fail("cannot create '{}': {}", partial_.string(), std::strerror(errno));
  }
}

PartialFile::~PartialFile() {
  if (!partial_.empty()) {
    std::error_code ignored;
    fs::remove(partial_, ignored);
  }
}

void PartialFile::write(std::span<const std::byte> bytes) {
  out_.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

void PartialFile::finish() {
  out_.close();
  require(!out_.fail(), "cannot write '{}': is the disk full?", partial_.string());
  sync_file(partial_);
  rename_and_sync(partial_, name_);
  partial_.clear();
}

void rename_and_sync(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  require(!error, "cannot rename '{}' to '{}': {}", from.string(), to.string(), error.message());
  sync_folder(to.has_parent_path() ? to.parent_path() : ".");
}

void check_output_file(const fs::path& name) {
  std::error_code ignored;
  const fs::path folder = name.has_parent_path() ? name.parent_path() : ".";
  if (name.filename().empty() || fs::is_directory(name, ignored)) {
    throw ConfigError(fmt::format("'{}' is a folder: give the name of a file to write", name.string()));
  }
  if (!fs::is_directory(folder, ignored)) {
    throw ConfigError(fmt::format("'{}' cannot be written: there is no folder '{}'", name.string(), folder.string()));
  }
}

void check_replaced(const fs::path& name, std::string_view beginning, const char* what) {
  std::error_code error;
  if (!fs::is_regular_file(name, error) || fs::file_size(name, error) == 0) {
    return;
  }
  std::string found(beginning.size(), '\0');
  std::ifstream(name, std::ios::binary).read(found.data(), static_cast<std::streamsize>(found.size()));
  if (found != beginning) {
    throw ConfigError(
        fmt::format("'{}' is there already, and is no {}: give another name, or remove it first", name.string(), what));
  }
}

void write_file(const fs::path& path, std::initializer_list<std::span<const std::byte>> pieces) {
  PartialFile file(path);
  for (const std::span<const std::byte> piece : pieces) {
    file.write(piece);
  }
  file.finish();
}

void write_file(const fs::path& path, std::string_view text) {
  write_file(path, {std::as_bytes(std::span(text))});
}

}  // namespace orthant
