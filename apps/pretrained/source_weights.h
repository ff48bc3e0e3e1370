// The tensors of a published model: one safetensors file, or several with an index.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint/safetensors.h"

namespace orthant {

// What a clone without Git LFS has in the place of a large file, and what to do.
bool is_lfs_pointer(std::string_view bytes);
constexpr const char* lfs_pointer_advice =
    "is a pointer of Git LFS and not the file: fetch it (git lfs pull in that folder)";

// Thread safety: const calls from any thread.
class SourceWeights {
 public:
  // Opens STEM.safetensors, or what STEM.safetensors.index.json names. Errors: ConfigError naming what is missing:
  // weights, a file of the index, a tensor that the index places in a file which lacks it or that it does not know, a
  // tensor that two files have; and Error for a damaged file.
  explicit SourceWeights(const std::filesystem::path& folder, const std::string& stem = "model");

  // Null: there is none of this name.
  const FileTensor* find(const std::string& name) const;
  std::vector<std::string> names() const;  // sorted
  // REQUIRES: there is one of this name. The bytes are mapped, and stay as long as this.
  std::span<const std::byte> bytes(const std::string& name) const;

  struct File {
    std::string name;
    std::uint64_t bytes = 0;
    std::string sha256;
  };
  std::vector<File> files() const;  // reads all of them
  std::uint64_t size() const;       // bytes of all files
  // The memory in which files were read goes back to the system; what is read again comes from the files again.
  void release_memory() const;

 private:
  void open(const std::filesystem::path& path);

  struct Place {
    std::size_t file = 0;
    const FileTensor* tensor = nullptr;
  };
  std::vector<SafetensorsReader> files_;
  std::map<std::string, Place> places_;
};

}  // namespace orthant
