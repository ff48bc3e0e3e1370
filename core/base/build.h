// Which headers of the tree the library was built with, for programs that were built with them too (libexec).
#pragma once

namespace orthant {

// The hash of all headers of core, router, experts and parallel, as ORTHANT_TREE (orthant_build.h) of a program.
const char* build_of_library();

}  // namespace orthant
