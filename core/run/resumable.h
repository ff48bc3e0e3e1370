// What `--resume auto` would go on from, for hints to the user.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace orthant {

struct Resumable {
  std::optional<std::filesystem::path> checkpoint;
  bool verified = false;              // whole; a large one only by its manifest and the sizes of its files
  std::vector<std::string> unusable;  // newer ones, each with the reason

  // A sentence, for whoever has just seen the run end.
  std::string to_string() const;
};

// Reads at most `most_bytes` of a checkpoint: nobody waits minutes for a hint.
Resumable find_resumable(const std::filesystem::path& root, std::uint64_t most_bytes = std::uint64_t{1} << 30);

}  // namespace orthant
