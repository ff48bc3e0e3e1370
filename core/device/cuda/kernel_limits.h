// How much dynamic shared memory each kernel has been allowed on one GPU. Asking the driver costs about as much as a
// launch: once a kernel has what it may get, nobody asks again. Owned by the CudaDevice.
//
// Thread safety: all calls, from any thread whose GPU is this one.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <unordered_map>

namespace orthant::cuda {

class KernelLimits {
 public:
  // most: bytes of a block, static and dynamic ones together.
  explicit KernelLimits(std::size_t most) : most_(most) {}

  // Dynamic and static shared memory of more than 48 KB together must be asked for. All that the GPU has then: the same
  // for each launch of the kernel, so that threads that launch it with different sizes do not undo each other's.
  // More than that is not refused here, but by the launch.
  cudaError_t allow(const void* kernel, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    std::size_t& allowed = allowed_[kernel];
    if (bytes <= allowed) {
      return cudaSuccess;
    }
    cudaFuncAttributes known{};
    if (const cudaError_t status = cudaFuncGetAttributes(&known, kernel); status != cudaSuccess) {
      return status;
    }
    // Whether drivers take the static part off maxDynamicSharedSizeBytes is not documented, so it is taken off here.
    constexpr std::size_t without_asking = std::size_t{48} << 10;
    allowed = std::min<std::size_t>(static_cast<std::size_t>(known.maxDynamicSharedSizeBytes),
                                    without_asking - std::min(without_asking, known.sharedSizeBytes));
    const std::size_t most = most_ - known.sharedSizeBytes;
    if (bytes <= allowed || allowed >= most) {
      return cudaSuccess;
    }
    const cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(most));
    if (status == cudaSuccess) {
      allowed = most;
    }
    return status;
  }

 private:
  const std::size_t most_;
  std::mutex mutex_;
  std::unordered_map<const void*, std::size_t> allowed_;
};

// Dynamic shared memory of a launch: CudaDevice::shared.
struct SharedBytes {
  std::size_t bytes = 0;
  KernelLimits* limits = nullptr;  // null: for 48 KB at most
};

}  // namespace orthant::cuda
