// What an optimizer must do, whatever it is for.
#pragma once

#include <string>

#include "apps/check/conformance.h"
#include "core/config/config.h"

namespace orthant {

// Of the optimizer `name`, for one parameter of each kind that it treats in a way of its own: its states have different
// names; the update of slices is that of the whole, in every bit; nothing changes where the factor is NaN; nothing but
// operations touches memory; two runs agree; and the step after a restore is the step without one. `again`: the same
// configuration, loaded once more, whose optimizer is another object.
Finding check_optimizer(const Config& config, const Config& again, const std::string& name);

}  // namespace orthant
