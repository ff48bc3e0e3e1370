// What must hold of rotary positions. Part of validate_model.h.
#pragma once

#include "core/config/rules.h"

namespace orthant {

void check_rope(const Settings& settings, Rules& rules);

}  // namespace orthant
