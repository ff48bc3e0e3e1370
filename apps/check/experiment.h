// The conformance suite's experiment: a tiny model with all that an axis can meet, and the layouts a plugin is put in.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/config/config.h"

namespace orthant {

// The axis that others are put below and above: it splits the batch, and carved ones can be carved from it.
inline constexpr const char* partner_axis = "data";
// The axis that others are put below to meet stages, which share a tied table.
inline constexpr const char* stage_axis = "pipeline";

// load_config of a file with this text, the plugins in it found and asked for their keys. Errors: ConfigError.
Config config_from_text(const std::string& toml, const std::vector<std::string>& overrides);

struct PluginUnderTest {
  std::filesystem::path file;
  std::string name;
  std::vector<std::string> overrides;
};

// `size`: of the plugin's axis, 0 where it has no such key. Errors: ConfigError.
struct Beside {
  int data = 0;        // ranks of a data axis, 0: none
  bool above = false;  // the plugin stands above it, that is, before it
  int stages = 0;      // ranks of a pipeline axis above both, 0: none
};
Config conformance_experiment(const PluginUnderTest& plugin, int size, const Beside& beside);

struct ConformanceLayout {
  std::string name;  // "size 2", "size 2 below data 2"
  Config config;
};

}  // namespace orthant
