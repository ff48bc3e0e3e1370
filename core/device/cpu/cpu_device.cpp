#include "core/device/cpu/cpu_device.h"

#include "core/base/check.h"
#include "core/device/cpu/cpu_stream.h"
#include "core/device/cpu/gemm.h"
#include "core/device/cpu/side_stream.h"

namespace orthant {
namespace {

// The tensor's own bytes; the tensor is held so that they stay.
class DirectView : public HostView {
 public:
  explicit DirectView(const Tensor& tensor) : HostView(tensor.as<std::byte>(), tensor.bytes()), tensor_(tensor) {}

 private:
  Tensor tensor_;
};

}  // namespace

CpuDevice::CpuDevice(int threads) : threads_(threads) {
  require(threads >= 1, "the cpu device needs at least one thread, got {}", threads);
  prepare_cpu_gemm();
}

std::unique_ptr<Stream> CpuDevice::make_main_stream() {
  return std::make_unique<CpuStream>(*this, threads_);
}

std::unique_ptr<Stream> CpuDevice::make_side_stream() {
  return std::make_unique<SideStream>(make_main_stream());
}

std::unique_ptr<Stream> CpuDevice::make_host_stream() {
  return std::make_unique<SideStream>(CpuDevice::make_main_stream());
}

std::unique_ptr<HostView> CpuDevice::host_view(const Tensor& tensor, Access) {
  require_defined("host_view", "tensor", tensor);
  return std::make_unique<DirectView>(tensor);
}

void* CpuDevice::allocate(std::size_t bytes) {
  void* const data = allocator_.allocate(bytes);
  require(data != nullptr, "out of host memory: a tensor of {} bytes was asked for, {} bytes are in use", bytes,
          memory().current_bytes + host_memory().current_bytes);
  return data;
}

std::unique_ptr<Device> make_cpu_device(int threads) {
  return std::make_unique<CpuDevice>(threads);
}

}  // namespace orthant
