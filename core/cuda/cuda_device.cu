#include "core/cuda/cuda_device.h"

#include <cstdlib>

#include "core/check.h"
#include "core/cuda/cuda_stream.h"
#include "core/cuda/launch.h"

namespace orthant::cuda {
namespace {

// A copy in host memory, written back where it may have been changed.
class StagedView final : public HostView {
 public:
  StagedView(const Tensor& tensor, Access access, cudaStream_t stream)
      : HostView(nullptr, tensor.bytes()), tensor_(tensor), access_(access), stream_(stream) {
    void* host = nullptr;
    check(cudaMallocHost(&host, bytes_ + 1), "host_view");
    data_ = static_cast<std::byte*>(host);
    check(cudaStreamSynchronize(stream_), "host_view");
    if (access_ != Access::write) {
      check(cudaMemcpyAsync(data_, tensor_.data(), bytes_, cudaMemcpyDeviceToHost, stream_), "host_view");
      check(cudaStreamSynchronize(stream_), "host_view");
    }
  }
  ~StagedView() override {
    if (access_ != Access::read) {
      cudaMemcpyAsync(tensor_.data(), data_, bytes_, cudaMemcpyHostToDevice, stream_);
      cudaStreamSynchronize(stream_);
    }
    cudaFreeHost(data_);
  }

 private:
  Tensor tensor_;
  Access access_;
  cudaStream_t stream_;
};

int local_rank() {
  const char* text = std::getenv("ORTHANT_LOCAL_RANK");
  return text == nullptr ? 0 : std::max(0, std::atoi(text));
}

}  // namespace

CudaDevice::CudaDevice(std::string name) : name_(std::move(name)) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  require(status == cudaSuccess && count > 0, "device \"{}\" needs a GPU and its driver, found none: {}", name_,
          status == cudaSuccess ? "0 devices" : cudaGetErrorString(status));
  ordinal_ = local_rank() % count;
  check(cudaSetDevice(ordinal_), "choosing the GPU");
  int major = 0, minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal_), "asking the GPU");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal_), "asking the GPU");
  check(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, ordinal_), "asking the GPU");
  architecture_ = 10 * major + minor;
  check(cudaStreamCreateWithFlags(&main_, cudaStreamNonBlocking), "making a stream");
}

CudaDevice::~CudaDevice() {
  cudaStreamSynchronize(main_);
  cudaStreamDestroy(main_);
}

std::unique_ptr<Stream> CudaDevice::make_main_stream() {
  return std::make_unique<CudaStream>(*this, main_);
}

std::unique_ptr<Stream> CudaDevice::make_side_stream() {
  return std::make_unique<CudaStream>(*this, main_);
}

std::unique_ptr<HostView> CudaDevice::host_view(const Tensor& tensor, Access access) {
  require_defined("host_view", "tensor", tensor);
  return std::make_unique<StagedView>(tensor, access, main_);
}

MemoryUse CudaDevice::memory() const {
  const std::lock_guard lock(mutex_);
  return use_;
}

void CudaDevice::reset_peak() {
  const std::lock_guard lock(mutex_);
  use_.peak_bytes = use_.current_bytes;
}

void* CudaDevice::allocate(std::size_t bytes) {
  void* data = nullptr;
  const cudaError_t status = cudaMallocAsync(&data, std::max<std::size_t>(bytes, 1), main_);
  const std::lock_guard lock(mutex_);
  require(status == cudaSuccess, "out of memory on GPU {}: {} bytes asked for, {} in use ({})", ordinal_, bytes,
          use_.current_bytes, cudaGetErrorString(status));
  use_.current_bytes += static_cast<std::int64_t>(bytes);
  use_.peak_bytes = std::max(use_.peak_bytes, use_.current_bytes);
  return data;
}

void CudaDevice::release(void* data, std::size_t bytes) noexcept {
  cudaFreeAsync(data, main_);
  const std::lock_guard lock(mutex_);
  use_.current_bytes -= static_cast<std::int64_t>(bytes);
}

}  // namespace orthant::cuda
