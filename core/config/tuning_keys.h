// The keys of [distil], [preference] and [lora], which registry.cpp joins to the others.
#pragma once

#include <vector>

#include "core/config/registry.h"

namespace orthant {

void declare_tuning(std::vector<CoreKey>& keys);

}  // namespace orthant
