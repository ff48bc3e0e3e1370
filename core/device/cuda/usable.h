// Whether this machine has a GPU that the device can use.
#pragma once

#include <string>

namespace orthant::cuda {

// How many GPUs there are, at least 1. Makes no context on them. Errors: ConfigError saying what is missing, and how to
// see that.
int usable_gpus(const std::string& device);

}  // namespace orthant::cuda
