// What is known of a device before one is made.
#pragma once

#include <string>

namespace orthant {

// That make_device(name) can be expected to work here; allocates nothing on the device. Errors: ConfigError where
// there is none, as make_device.
void check_device(const std::string& name);

}  // namespace orthant
