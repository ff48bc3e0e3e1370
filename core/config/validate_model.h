// Checks of [model] and [moe] that involve several keys.
#pragma once

#include "core/config/rules.h"

namespace orthant {

void check_model(const Settings& settings, Rules& rules);
void check_moe(const Config& config, Rules& rules);

}  // namespace orthant
