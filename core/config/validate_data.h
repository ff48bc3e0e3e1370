// Checks of [data] and [batch] that involve several keys, or the file system.
#pragma once

#include "core/config/config.h"
#include "core/config/rules.h"

namespace orthant {

void check_data(const Config& config, Rules& rules);

}  // namespace orthant
