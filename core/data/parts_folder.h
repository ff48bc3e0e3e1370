// PartsFolder: finished shards of a token file that is being made, as files in OUT.parts/.
//
// Thread safety: put and finished may be called at the same time for different shards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/mapped_file.h"

namespace orthant {

class PartsFolder {
 public:
  // `job` says what the shards are made of: those of another job are removed. Errors: Error where another process
  // holds the folder, where it holds files and was not made by this class, or where it cannot be made.
  PartsFolder(std::filesystem::path folder, const std::string& job);

  // sizes: tokens of each document; tokens: their bytes. The shard appears whole. Errors: Error for a full disk.
  void put(std::size_t shard, std::span<const std::uint64_t> sizes, std::span<const std::byte> tokens) const;

  struct Part {
    MappedFile file;
    std::vector<std::uint64_t> sizes;
    std::span<const std::byte> tokens;  // of file
  };
  // Nothing where there is none, or a damaged one. check: all of it is read, and compared with its checksum; without
  // it, sizes alone are compared with the file.
  std::optional<Part> finished(std::size_t shard, bool check = true) const;

  // Removes the shards, and the folder where nothing else lies in it.
  void remove() const;

 private:
  // One process at a time: until this goes.
  class Lock {
   public:
    explicit Lock(const std::filesystem::path& file);
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    int file_;
  };

  std::filesystem::path path_of(std::size_t shard) const;
  void remove_shards() const;

  std::filesystem::path folder_;
  std::optional<Lock> lock_;
};

}  // namespace orthant
