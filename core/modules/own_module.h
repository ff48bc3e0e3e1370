// Modules of this tree that the library opens when it needs one: kind "module", liborthant_module_NAME.so. They use
// headers of the tree that no version protects, so they must be of the tree that the library was built of.
#pragma once

#include <string>

#include "core/modules/module.h"

namespace orthant {

// As find_module. `./launch` builds none of them: in a build folder the first use does, and the first after the library
// was built again (core/base/build_on_use.h). Errors: ConfigError, with what to do.
Module find_own_module(const std::string& name);

}  // namespace orthant
