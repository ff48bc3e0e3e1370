// What can be known to fail before any rank starts.
#pragma once

#include "core/config/config.h"

namespace orthant {

// Checks the layout, and that the device, the communicator and the data can be opened on this machine. Returns the
// layout's world size. Errors: ConfigError with everything that is wrong, each at the value to change.
int check_start(const Config& config);

}  // namespace orthant
