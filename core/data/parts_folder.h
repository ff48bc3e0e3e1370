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

#include "core/data/mapped_file.h"

namespace orthant {

class PartsFolder {
 public:
  // `job` says what the shards are made of: those of another job are removed. Errors: Error where another process
  // holds the folder, or where it cannot be made.
  PartsFolder(std::filesystem::path folder, const std::string& job);
  ~PartsFolder();
  PartsFolder(const PartsFolder&) = delete;
  PartsFolder& operator=(const PartsFolder&) = delete;

  // sizes: tokens of each document; tokens: their bytes. The shard appears whole. Errors: Error for a full disk.
  void put(std::size_t shard, std::span<const std::uint64_t> sizes, std::span<const std::byte> tokens) const;

  struct Part {
    MappedFile file;
    std::vector<std::uint64_t> sizes;
    std::span<const std::byte> tokens;  // of file
  };
  // Nothing where there is none, or a damaged one.
  std::optional<Part> finished(std::size_t shard) const;

  void remove();

 private:
  std::filesystem::path path_of(std::size_t shard) const;

  std::filesystem::path folder_;
  int lock_ = -1;
};

}  // namespace orthant
