// What lies in a folder.
#pragma once

#include <filesystem>
#include <system_error>
#include <vector>

namespace orthant {

// The paths of its entries, in no order. Where it cannot be read to its end, `error` says why and what came before is
// returned. (A range-for over directory_iterator(folder, error) throws in that case: its ++ knows of no error.)
inline std::vector<std::filesystem::path> list_folder(const std::filesystem::path& folder, std::error_code& error) {
  std::vector<std::filesystem::path> paths;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    paths.push_back(entry->path());
  }
  return paths;
}

}  // namespace orthant
