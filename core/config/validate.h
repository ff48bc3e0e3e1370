// Checks that involve several keys, or the file system. What depends on the layout (world size, divisibility by an
// axis) is checked by the plan, which knows the plugins.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "core/config/config.h"
#include "core/config/registry.h"

namespace orthant {

// Adds to `diagnostics` what does not fit together in config.settings. `broken`: keys ("model.heads") whose own value
// was refused; a check that involves one of them is left out. `keys`: declared_keys of its catalogue.
void validate(const Config& config, const std::vector<CoreKey>& keys, const std::set<std::string>& broken,
              Diagnostics& diagnostics);

// What is allowed but may surprise, in whole sentences. REQUIRES: validated settings.
std::vector<std::string> warnings(const Settings& settings);

}  // namespace orthant
