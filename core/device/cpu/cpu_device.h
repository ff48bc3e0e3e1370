// The CPU device: host memory from a caching allocator, operations of cpu_stream.h.
#pragma once

#include <orthant/device.h>

#include "core/device/cpu/allocator.h"

namespace orthant {

class CpuDevice : public Device {
 public:
  // threads: OpenMP threads of one operation, at least 1.
  explicit CpuDevice(int threads);

  std::string_view name() const override { return "cpu"; }
  std::unique_ptr<Stream> make_main_stream() override;
  std::unique_ptr<Stream> make_side_stream() override;
  std::unique_ptr<Stream> make_host_stream() override;
  std::unique_ptr<HostView> host_view(const Tensor& tensor, Access access) override;

 protected:
  void* allocate(std::size_t bytes) override;
  void release(void* data, std::size_t bytes) noexcept override { allocator_.release(data, bytes); }
  // The same memory: the device is the host.
  void* allocate_host(std::size_t bytes) override { return allocate(bytes); }
  void release_host(void* data, std::size_t bytes) noexcept override { release(data, bytes); }

 private:
  int threads_;
  CachingAllocator allocator_;
};

}  // namespace orthant
