#include "core/trace/nvtx.h"

#if defined(ORTHANT_HAS_NVTX)
#include <nvtx3/nvToolsExt.h>
#endif

namespace orthant {

#if defined(ORTHANT_HAS_NVTX)
bool has_nvtx() {
  return true;
}
void nvtx_push(const std::string& name) {
  nvtxRangePushA(name.c_str());
}
void nvtx_pop() {
  nvtxRangePop();
}
#else
bool has_nvtx() {
  return false;
}
void nvtx_push(const std::string&) {}
void nvtx_pop() {}
#endif

}  // namespace orthant
