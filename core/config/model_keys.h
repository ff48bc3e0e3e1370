// The keys of [model] and [moe], which registry.cpp joins to the others.
#pragma once

#include <vector>

#include "core/config/registry.h"

namespace orthant {

void declare_model(std::vector<CoreKey>& keys);
void declare_moe(std::vector<CoreKey>& keys);

}  // namespace orthant
