// MappedFile: a whole file, read-only, in memory without a copy.
//
// Thread safety: const access from any thread. A file that another process cuts while it is mapped ends this process
// (cut_files.h): data and checkpoints are written under another name and renamed, never rewritten in place.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace orthant {

class MappedFile {
 public:
  // Errors: ConfigError when the file is missing, not a regular file or unreadable, with the system's words.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::size_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace orthant
