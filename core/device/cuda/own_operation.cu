// apply: an operation of a plugin's own, by its CUDA function, or on the host on copies, for which the host waits.
#include "core/device/own_operation.h"

#include <map>
#include <vector>

#include "core/device/cuda/cuda_stream.h"

namespace orthant::cuda {

void CudaStream::apply(const OwnOperation& operation) {
  check_own_operation(operation);
  const bool native = operation.native != nullptr && operation.native_device == device_.name();
  device_.require_not_capturing(operation.name.c_str(), native ? CudaDevice::not_listed : CudaDevice::waits);
  if (native) {
    operation.native(*this);
    return;
  }
  // One copy of each tensor: what is read and written is one argument in both lists.
  std::map<const void*, std::vector<std::byte>> copies;
  for (const Tensor& t : operation.outputs) {
    copies[t.data()].resize(t.bytes());
  }
  for (const Tensor& t : operation.inputs) {
    std::vector<std::byte>& copy = copies[t.data()];
    copy.resize(t.bytes());
    to_host(copy.data(), t.data(), t.bytes());
  }
  run_on_host(operation, [&](const Tensor& t) { return copies.at(t.data()).data(); });
  for (const Tensor& t : operation.outputs) {
    to_device(t.data(), copies.at(t.data()).data(), t.bytes());
  }
}

}  // namespace orthant::cuda
