// How `orthant plan --schedule` draws who works when: as text, as SVG. A backward pass is drawn twice as long as a
// forward pass, sending as taking no time.
#pragma once

#include <string>

#include "core/config/config.h"
#include "core/plan/schedule_check.h"

namespace orthant {

// Of one step of a configuration. Errors: ConfigError for a layout that does not fit, as check_layout's.
Programs planned_programs(const Config& config);

// One line a stage, one column a slot; a long step is cut short. Below: the bubble, and what stages hold.
std::string schedule_text(const Programs& programs);
std::string schedule_svg(const Programs& programs);

}  // namespace orthant
