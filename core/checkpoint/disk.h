// Disk: the writes, syncs and renames of a save, each of which a test can make fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "core/checkpoint/safetensors.h"

namespace orthant {

class Disk {
 public:
  // Called before each operation: "create", "write", "sync", "rename", "remove", "room". A test throws from it.
  using Hook = std::function<void(std::string_view operation, const std::filesystem::path& path)>;
  explicit Disk(Hook hook = {}) : hook_(std::move(hook)) {}

  // All: Error with path and the system's words on failure.
  // Folders above it too; each that is made is synced into its parent.
  void create_folder(const std::filesystem::path& path) const;
  // As in core/base/sync.h.
  void sync_folder(const std::filesystem::path& path) const;
  void sync_file(const std::filesystem::path& path) const;
  // Replaces the file, or makes it: at any time the whole old text or the whole new one is there.
  void replace_file(const std::filesystem::path& path, std::string_view text) const;
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) const;
  // Before much is written into a folder that is there. do_instead: what the user may do, for the message. Errors:
  // Error where its file system has no room for so many bytes; one that does not say how much it has is trusted.
  void require_room(const std::filesystem::path& folder, std::uint64_t bytes, std::string_view do_instead) const;
  void remove_all(const std::filesystem::path& path) const;

  void before(std::string_view operation, const std::filesystem::path& path) const {
    if (hook_) {
      hook_(operation, path);
    }
  }

 private:
  Hook hook_;
};

// False: a file system that says this of itself has too little room. One of no size at all does not say (FUSE's,
// without a statfs of its own).
bool has_room(const std::filesystem::space_info& there, std::uint64_t bytes);

// A new file, written from the start to the end; what stood under its name before is replaced. Its XXH3 is taken on
// the way.
class DiskFile final : public ByteSink {
 public:
  DiskFile(const Disk& disk, const std::filesystem::path& path);
  ~DiskFile() override;
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  void write(std::span<const std::byte> bytes) override;
  // Until this returns, a power failure may lose the file.
  void sync_and_close();
  // Of a file that is not to be finished: it keeps no room on a full disk.
  void give_up() noexcept;
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t checksum() const;  // XXH3-64 of all bytes written

 private:
  struct Hash;
  const Disk& disk_;
  std::filesystem::path path_;
  int file_ = -1;
  std::uint64_t bytes_ = 0;
  std::unique_ptr<Hash> hash_;
};

std::uint64_t checksum_of(std::span<const std::byte> bytes);  // XXH3-64

struct FileChecksum {
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;  // XXH3-64
};
// Of a whole file, by reads: a disk that fails is an error here, where in mapped memory it is a signal (SIGBUS).
// Errors: CheckpointUnreadable with the system's words.
FileChecksum checksum_of_file(const std::filesystem::path& path);

}  // namespace orthant
