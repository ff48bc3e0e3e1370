#include "experts/cuda/cutlass_products.h"

#include <cstdlib>

#include "core/base/check.h"
#include "experts/cuda/choose_tile.h"
#include "experts/cuda/cutlass/cutlass_gemm.h"

namespace orthant::cuda {

#if defined(ORTHANT_HAVE_CUTLASS)

namespace {

const CutlassKernel& kernel_for(const GroupedProblem& p, const CudaDevice& device) {
#if defined(ORTHANT_HAVE_CUTLASS_BLACKWELL)
  if (device.architecture() != 90) {
    return blackwell_kernel(p.layout, choose_blackwell_tile(p, device.multiprocessors()));
  }
#endif
  const char* const given = std::getenv("ORTHANT_CUDA_TILE");  // checked when the device was made
  return hopper_kernel(p.layout,
                       tile_setting(given == nullptr ? "" : given).value_or(choose_tile(p, device.multiprocessors())));
}

}  // namespace

void multiply_by_cutlass(CudaStream& stream, const GroupedProblem& p, const GroupArrays& groups) {
  const CutlassKernel& kernel = kernel_for(p, stream.cuda());
  void* const workspace = stream.scratch(0, kernel.workspace_bytes(p, stream.cuda().multiprocessors()));
  try {
    kernel.run(stream, p, groups, workspace);
  } catch (const Error& error) {
    fail("{} (kernel {})", error.what(), kernel.name);
  }
}

#else

void multiply_by_cutlass(CudaStream&, const GroupedProblem&, const GroupArrays&) {
  fail("internal error: built without CUTLASS");
}

#endif

}  // namespace orthant::cuda
