// apply: an operation of a plugin's own, by its CUDA function, or on the host on copies, for which the host waits.
#include "core/device/cuda/cuda_stream.h"

namespace orthant::cuda {

void CudaStream::apply(const OwnOperation& operation) {
  const bool native = operation.native != nullptr && operation.native_device == device_.name();
  device_.require_not_capturing(operation.name.c_str(), native ? CudaDevice::not_listed : CudaDevice::waits);
  Stream::apply(operation);
}

}  // namespace orthant::cuda
