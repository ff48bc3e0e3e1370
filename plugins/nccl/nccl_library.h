// NCCL itself.
#pragma once

#include <memory>

#include "nccl_api.h"

namespace orthant::nccl {

// Errors: Error where there is no GPU or driver.
std::shared_ptr<NcclApi> make_nccl_library();

}  // namespace orthant::nccl
