// What is known of a device before one is made.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace orthant {

// That make_device(name) can be expected to work here; allocates nothing on the device. Errors: ConfigError where
// there is none, as make_device.
void check_device(const std::string& name);

// Where liborthant_device_NAME.so is looked for, in order: the folders of ORTHANT_PLUGIN_PATH, and this library's.
std::vector<std::filesystem::path> device_folders();

}  // namespace orthant
