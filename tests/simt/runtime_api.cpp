#include "tests/simt/runtime_api.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "tests/simt/counters.h"
#include "tests/simt/engine.h"
#include "tests/simt/streams.h"

struct CUmemPoolHandle_st {
  std::atomic<std::uint64_t> release_threshold{0};
};

namespace {

constexpr std::size_t alignment = 256;  // what cudaMalloc promises
constexpr int version = 13000;
constexpr std::size_t memory_bytes = std::size_t{16} << 30;

CUmemPoolHandle_st default_pool;
std::atomic<std::int64_t> attribute_questions{0};

cudaError_t allocate(void** memory, std::size_t bytes) {
  *memory = nullptr;
  if (bytes == 0) {
    return cudaSuccess;
  }
  if (bytes > memory_bytes || posix_memalign(memory, alignment, bytes) != 0) {
    *memory = nullptr;
    return cudaErrorMemoryAllocation;
  }
  if (!orthant::simt::counters().only) {
    std::memset(*memory, 0xFF, bytes);
  }
  return cudaSuccess;
}

cudaError_t release(void* memory) {
  std::free(memory);
  return cudaSuccess;
}

// Tells operations of one kind from others in graphs.
const char copying = 0, setting = 0, host_function = 0, freeing = 0;

void move_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) {
    std::memmove(to, from, bytes);
  }
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorUnknown: break;
  }
  return "cudaErrorUnknown";
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorUnknown: break;
  }
  return "unknown error";
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device != 0) {
    return cudaErrorInvalidDevice;
  }
  *properties = {};
  std::strncpy(properties->name, "SIMT shim on the CPU", sizeof properties->name - 1);
  properties->totalGlobalMem = memory_bytes;
  properties->sharedMemPerBlock = orthant::simt::static_shared_limit;
  properties->sharedMemPerBlockOptin = orthant::simt::shared_limit();
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = orthant::simt::block_threads_limit;
  properties->multiProcessorCount = 4;
  properties->major = orthant::simt::architecture() / 10;
  properties->minor = orthant::simt::architecture() % 10;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  const cudaError_t status = cudaGetDeviceProperties(&properties, device);
  if (status != cudaSuccess) {
    return status;
  }
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = properties.maxThreadsPerBlock; return cudaSuccess;
    case cudaDevAttrMultiProcessorCount: *value = properties.multiProcessorCount; return cudaSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor: *value = properties.major; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: *value = properties.minor; return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      return cudaSuccess;
    case cudaDevAttrMemoryPoolsSupported: *value = 1; return cudaSuccess;
  }
  return cudaErrorInvalidValue;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  ++attribute_questions;
  *attributes = {0, static_cast<int>(orthant::simt::allowed_shared(kernel))};
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      static_cast<std::size_t>(value) > orthant::simt::shared_limit()) {
    return cudaErrorInvalidValue;
  }
  orthant::simt::allow_shared(kernel, static_cast<std::size_t>(value));
  return cudaSuccess;
}

std::int64_t orthant::simt::questions_of_kernels() {
  return attribute_questions;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = memory_bytes;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* found) {
  *found = version;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* found) {
  *found = version;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  return allocate(memory, bytes);
}

cudaError_t cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t) {
  return allocate(memory, bytes);
}

cudaError_t cudaMallocFromPoolAsync(void** memory, std::size_t bytes, cudaMemPool_t, cudaStream_t) {
  return allocate(memory, bytes);
}

cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  return allocate(memory, bytes);
}

cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  return allocate(memory, bytes);
}

// Waits, as the driver does.
cudaError_t cudaFree(void* memory) {
  cudaDeviceSynchronize();
  return release(memory);
}

cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  orthant::simt::give(stream, &freeing, [=] { std::free(memory); });
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* memory) {
  return release(memory);
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  *pool = &default_pool;
  return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  if (attribute == cudaMemPoolAttrReleaseThreshold) {
    pool->release_threshold = *static_cast<std::uint64_t*>(value);
  }
  return cudaSuccess;  // the others choose how memory is used again, which it never is
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  if (attribute != cudaMemPoolAttrReleaseThreshold) {
    return cudaErrorInvalidValue;
  }
  *static_cast<std::uint64_t*>(value) = pool->release_threshold;
  return cudaSuccess;
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, std::size_t) {
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  cudaDeviceSynchronize();
  move_bytes(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  ++orthant::simt::counters().launches;
  orthant::simt::give(stream, &copying, [=] { move_bytes(to, from, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t height, cudaMemcpyKind, cudaStream_t stream) {
  if (width > to_pitch || width > from_pitch) {
    return cudaErrorInvalidValue;
  }
  ++orthant::simt::counters().launches;
  orthant::simt::give(stream, &copying, [=] {
    for (std::size_t row = 0; row < height; ++row) {
      move_bytes(static_cast<std::byte*>(to) + row * to_pitch, static_cast<const std::byte*>(from) + row * from_pitch,
                 width);
    }
  });
  return cudaSuccess;
}

cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  cudaDeviceSynchronize();
  return cudaMemsetAsync(memory, value, bytes, nullptr);
}

cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  ++orthant::simt::counters().launches;
  if (orthant::simt::counters().only) {
    return cudaSuccess;
  }
  orthant::simt::give(stream, &setting, [=] {
    if (bytes > 0) {
      std::memset(memory, value, bytes);
    }
  });
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  orthant::simt::give(stream, &host_function, [=] { function(data); });
  return cudaSuccess;
}
