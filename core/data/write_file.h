// A file that appears under its name only when it is complete.
#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <span>
#include <string_view>

namespace orthant {

// NAME.partial, to be written; it becomes NAME by finish(), and is gone without it. Not even a power failure leaves a
// part of it under NAME.
class PartialFile {
 public:
  // Errors: Error where it cannot be created.
  explicit PartialFile(const std::filesystem::path& name);
  ~PartialFile();
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void rewind() { out_.seekp(0); }
  // Closes, syncs and renames it. Errors: Error where any of it could not be written, or NAME cannot be.
  void finish();

 private:
  std::filesystem::path name_, partial_;
  std::ofstream out_;
};

// Gives a whole, synced file another name, that a power failure does not take back. Errors: Error.
void rename_and_sync(const std::filesystem::path& from, const std::filesystem::path& to);

// Refuses a name that no file can have: a folder's, or one in a folder that is not there. Errors: ConfigError.
void check_output_file(const std::filesystem::path& name);

// Refuses to replace a file that does not begin so, as one of somebody else. An empty file may be replaced.
// what: a file of ours, for the message. Errors: ConfigError.
void check_replaced(const std::filesystem::path& name, std::string_view beginning, const char* what);

// Writes NAME.partial, then renames it. Errors: Error when it cannot be written; nothing is left then.
void write_file(const std::filesystem::path& path, std::initializer_list<std::span<const std::byte>> pieces);
void write_file(const std::filesystem::path& path, std::string_view text);

}  // namespace orthant
