// What saves that did not end have left in a run's folder.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace orthant::run_test {

// The names of the folders that no checkpoint became.
inline std::vector<std::string> unfinished_saves(const std::filesystem::path& run) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(run / "checkpoints")) {
    if (entry.path().extension() == ".tmp") {
      names.push_back(entry.path().filename().string());
    }
  }
  return names;
}

}  // namespace orthant::run_test
