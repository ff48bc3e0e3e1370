// Tensor maps: what the copies of cluster.h know of a tensor in global memory. Host.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <array>
#include <cstdint>

#include "core/device/cuda/launch.h"

namespace orthant::cuda {

// The driver's function, asked for at run time: nothing here is linked with the driver's library.
inline CUresult encode_tensor_map(CUtensorMap* map, void* address, const cuuint64_t* sizes, const cuuint64_t* strides,
                                  const cuuint32_t* box, CUtensorMapSwizzle swizzle) {
  constexpr cuuint32_t ones[] = {1, 1, 1};
#if defined(ORTHANT_SIMT)
  const auto encode = &cuTensorMapEncodeTiled;
#else
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result),
#else
    check(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result),
#endif
          "ask the driver for cuTensorMapEncodeTiled");
    require(
        result == cudaDriverEntryPointSuccess && found != nullptr,
        "the driver has no cuTensorMapEncodeTiled, which Hopper's kernels need (result {}): a driver for CUDA 12 or "
        "newer has it",
        static_cast<int>(result));
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
#endif
  return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, address, sizes, strides, box, ones,
                CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

// bf16 [sizes[2], sizes[1], sizes[0]], dense, and the box [box[2], box[1], box[0]] that is copied at once; the pieces
// of 16 bytes of its rows are swizzled by the bytes of a row. REQUIRES: data aligned to 16 bytes, sizes[0] a multiple
// of 8, no size of 0, 16, 32 or 64 elements to the row of a box. Errors: Error where the driver refuses.
inline CUtensorMap tensor_map(const void* data, const std::array<std::int64_t, 3>& sizes,
                              const std::array<int, 3>& box) {
  const auto at = [](std::int64_t size) { return static_cast<cuuint64_t>(size); };
  const cuuint64_t extents[] = {at(sizes[0]), at(sizes[1]), at(sizes[2])};
  const cuuint64_t strides[] = {at(sizes[0] * 2), at(sizes[0] * sizes[1] * 2)};
  const cuuint32_t boxes[] = {static_cast<cuuint32_t>(box[0]), static_cast<cuuint32_t>(box[1]),
                              static_cast<cuuint32_t>(box[2])};
  const CUtensorMapSwizzle swizzle = box[0] == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : box[0] == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                    : CU_TENSOR_MAP_SWIZZLE_32B;
  CUtensorMap map{};
  const CUresult result = encode_tensor_map(&map, const_cast<void*>(data), extents, strides, boxes, swizzle);
  require(result == CUDA_SUCCESS, "a tensor map of [{}, {}, {}] in boxes of [{}, {}, {}]: the driver says {}", sizes[2],
          sizes[1], sizes[0], box[2], box[1], box[0], static_cast<int>(result));
  return map;
}

}  // namespace orthant::cuda
