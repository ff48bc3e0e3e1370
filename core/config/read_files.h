// Reads the files of a configuration, in the order in which their values apply.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/config/diagnostics.h"
#include "core/config/sources.h"
#include "core/config/toml_reader.h"

namespace orthant {

// One file, or one override.
struct SettingsLayer {
  Node root;                        // without `extends`
  std::filesystem::path directory;  // that its relative paths are relative to; absolute
  bool is_override = false;
};

// `file`, preceded by what it extends (depth first, in the order listed), followed by the overrides: later wins.
// Files that cannot be read become diagnostics.
std::vector<SettingsLayer> read_layers(const std::string& file, const std::vector<std::string>& overrides,
                                       Sources& sources, Diagnostics& diagnostics);

}  // namespace orthant
