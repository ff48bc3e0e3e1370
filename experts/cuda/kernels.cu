// CudaDevice::kernels, in the room that knows how the experts' are chosen.
#include "core/device/cuda/cuda_device.h"
#include "experts/cuda/expert_kernels.h"
#include "experts/cuda/kernels_text.h"

namespace orthant::cuda {

std::string CudaDevice::kernels(DType compute) const {
  KernelLibraries built_with;
#if !defined(ORTHANT_SIMT)
  built_with.cublas = true;
#endif
#if defined(ORTHANT_CUDNN)
  built_with.cudnn = true;
#endif
  return kernels_text(expert_means(*this), built_with, deterministic_, compute);
}

}  // namespace orthant::cuda
