// The CUDA device: the GPU of this rank. Memory comes from a stream-ordered pool, in the order of the main stream.
//
// Which GPU: ORTHANT_LOCAL_RANK, else 0, modulo the number of GPUs that CUDA_VISIBLE_DEVICES leaves. Ranks that share
// one GPU each have a CudaDevice of their own. Thread safety: as device.h.
#pragma once

#include <cuda_runtime.h>

#include <orthant/device.h>

#include <mutex>
#include <string>

namespace orthant::cuda {

class CudaDevice final : public Device {
 public:
  // name: "cuda"; "simt" where the kernels run on the CPU (tests/simt). Errors: Error where there is no usable GPU.
  explicit CudaDevice(std::string name);
  ~CudaDevice() override;

  std::string_view name() const override { return name_; }
  bool asynchronous() const override { return true; }
  std::unique_ptr<Stream> make_main_stream() override;
  std::unique_ptr<Stream> make_side_stream() override;
  std::unique_ptr<HostView> host_view(const Tensor& tensor, Access access) override;
  MemoryUse memory() const override;
  void reset_peak() override;

  int ordinal() const { return ordinal_; }
  int multiprocessors() const { return multiprocessors_; }
  // 80 for sm_80, 90 for Hopper.
  int architecture() const { return architecture_; }
  // The stream in whose order memory is allocated and freed.
  cudaStream_t main() const { return main_; }

 protected:
  void* allocate(std::size_t bytes) override;
  void release(void* data, std::size_t bytes) noexcept override;

 private:
  std::string name_;
  int ordinal_ = 0, multiprocessors_ = 1, architecture_ = 0;
  cudaStream_t main_ = nullptr;
  mutable std::mutex mutex_;
  MemoryUse use_;
};

}  // namespace orthant::cuda
