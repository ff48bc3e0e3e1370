// Stands in for the CUDA Toolkit's header of this name: kernels compile as C++ and run on the CPU
// (tests/simt/README.md).
#pragma once

#include <vector_types.h>

#include "tests/simt/async_copies.h"
#include "tests/simt/device_functions.h"
#include "tests/simt/runtime_api.h"
