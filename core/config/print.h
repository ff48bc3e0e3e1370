// A configuration as text.
#pragma once

#include <string>

#include "core/config/config.h"

namespace orthant {

// The whole configuration as TOML, each line with a comment that says where its value comes from. Loading it gives the
// same values and the same order of plugins; paths are absolute.
std::string resolved_toml(const Config& config);

// The same values as one JSON object of tables, for programs without a TOML reader: {"run": {"name": ...}, ...,
// "plugins": {NAME: {...}}}. The plugins' order is kept.
std::string resolved_json(const Config& config);

}  // namespace orthant
