// Launching kernels and shared memory, in a form that nvcc compiles for a GPU and tests/simt runs on the CPU.
//
//   __global__ void sum_rows(float* y, const float* x, std::int64_t columns) {  // x [rows, columns]
//     ORTHANT_SHARED(float, partial, [32]);
//     ...
//   }
//   launch(sum_rows, Grid{blocks_for(rows, 1), 256}, stream, y, x, columns);
//
// Kernels never use <<<>>>, __shared__ or extern __shared__ themselves.
// Thread safety: as the CUDA runtime's; nothing here is shared.
#pragma once

#include <cuda_runtime.h>

#include <orthant/error.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <source_location>
#include <string_view>
#include <utility>
#include <vector>

#include "core/device/cuda/kernel_limits.h"
#include "core/device/cuda/recorder.h"

namespace orthant::cuda {

// Throws Error with the operation, the CUDA error's name and its text. `operation` reads like "copy to the device".
inline void check(cudaError_t status, std::string_view operation) {
  if (status != cudaSuccess) [[unlikely]] {
    static_cast<void>(cudaGetLastError());  // what has been reported is not reported again by the next launch
    fail("CUDA: {}: {} ({})", operation, cudaGetErrorName(status), cudaGetErrorString(status));
  }
}

// What the GPUs have that let a block have the least (sm_86, sm_89, sm_120); others: CudaDevice::shared_memory.
inline constexpr std::size_t least_shared_memory = 99 * 1024;

struct Grid {
  dim3 blocks;
  int threads;                                                   // of a block: 32, 64, ... 1024
  SharedBytes shared = {};                                       // dynamic shared memory
  std::source_location where = std::source_location::current();  // named in errors; not to be set
};

// Blocks that give each of `items` to one block of `per_block`. At most `most`: with more items, a block takes several
// (grid-stride loop).
inline unsigned blocks_for(std::int64_t items, std::int64_t per_block, std::int64_t most = 2147483647) {
  return static_cast<unsigned>(std::min((items + per_block - 1) / per_block, most));
}

#if defined(__CUDACC__)

// Shared memory of a fixed size, aligned to 16 bytes at least: ORTHANT_SHARED(float, tile, [32][33]).
#define ORTHANT_SHARED(type, name, extents) __shared__ __align__(16) type name extents

// The launch's Grid::shared of dynamic shared memory, the same address for every T.
template <class T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char orthant_dynamic_shared[];
  return reinterpret_cast<T*>(orthant_dynamic_shared);
}

#elif defined(ORTHANT_SIMT)

// `type extents` is a type-id: float [32][33].
#define ORTHANT_SHARED(type, name, extents)                      \
  auto& name = ::orthant::simt::static_shared<type extents>([] { \
    static const char tag = 0;                                   \
    return &tag;                                                 \
  }())

template <class T>
T* dynamic_shared() {
  return static_cast<T*>(simt::dynamic_shared_bytes());
}

#endif

#if defined(__CUDACC__) || defined(ORTHANT_SIMT)

// Of a kernel of these parameters, as a Command has it.
template <class... P>
void launch_listed(const Command& command, cudaStream_t stream) {
#if defined(__CUDACC__)
  std::vector<void*> parameters = command.parameters();
  check(cudaLaunchKernel(command.what, command.blocks, command.threads, parameters.data(), command.shared, stream),
        "recording a kernel");
#else
  simt::launch_node({command.blocks, static_cast<int>(command.threads.x), command.shared, command.where}, stream,
                    command.what, simt::node_kernel<P...>(), command.parameters().data());
#endif
}

// Runs kernel(args...) on every thread of the grid, in `stream`'s order. No blocks: nothing is launched.
// Arguments are converted to the kernel's parameters, without narrowing.
// Errors: Error naming the place of the launch; failures of the kernel itself show up at a later synchronisation.
template <class... P, class... A>
void launch(void (*kernel)(P...), const Grid& grid, const StreamRef& stream, A&&... args) {
  static_assert(sizeof...(P) == sizeof...(A), "the kernel has another number of parameters");
  require(grid.threads >= 32 && grid.threads <= 1024 && grid.threads % 32 == 0,
          "a block has 32, 64, ... 1024 threads, got {} ({}:{})", grid.threads, grid.where.file_name(),
          grid.where.line());
  if (grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.z == 0) {
    return;
  }
  const void* const address = reinterpret_cast<const void*>(kernel);
  cudaError_t status = cudaSuccess;
  if (grid.shared.bytes > 0 && grid.shared.limits != nullptr) {
    status = grid.shared.limits->allow(address, grid.shared.bytes);
  }
  if (Recorder* const recorder = stream.lists(); recorder != nullptr && status == cudaSuccess) {
    Command command = kernel_command(address, grid.blocks, grid.threads, grid.shared.bytes, launch_listed<P...>,
                                     P{std::forward<A>(args)}...);
    command.where = grid.where;
    recorder->add(std::move(command));
    return;
  }
#if defined(__CUDACC__)
  if (status == cudaSuccess) {
    kernel<<<grid.blocks, static_cast<unsigned>(grid.threads), grid.shared.bytes, stream.handle()>>>(
        P{std::forward<A>(args)}...);
    status = cudaGetLastError();
  }
#endif
  if (status != cudaSuccess) [[unlikely]] {
    check(status, fmt::format("launch of {} x {} x {} blocks of {} threads with {} bytes of dynamic shared memory "
                              "({}:{})",
                              grid.blocks.x, grid.blocks.y, grid.blocks.z, grid.threads, grid.shared.bytes,
                              grid.where.file_name(), grid.where.line()));
  }
#if defined(ORTHANT_SIMT)
  simt::launch({grid.blocks, grid.threads, grid.shared.bytes, grid.where}, stream.handle(), address,
               [kernel, ... values = P{std::forward<A>(args)}] { kernel(values...); });
#endif
}

#endif

}  // namespace orthant::cuda
