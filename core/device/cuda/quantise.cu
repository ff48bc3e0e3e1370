// quantise and dequantise: one block of threads for each block of elements.
#include <limits>

#include "core/base/storage_types.h"
#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/device_math.h"
#include "core/device/cuda/float_type.h"
#include "core/device/operation_checks.h"

namespace orthant::cuda {
namespace {

constexpr int quantise_threads = 128;
constexpr std::int64_t quantise_most_blocks = 1 << 16;

// Floor: twice the bytes of x, and those of q.
template <class Q, class T>
__global__ void quantise_blocks(Q* q, float* scale, const T* x, std::int64_t n, std::int64_t block) {
  for (std::int64_t b = blockIdx.x; b * block < n; b += gridDim.x) {
    const std::int64_t first = b * block, end = first + block < n ? first + block : n;
    float most = 0;
    int odd = 0;  // some x is not finite
    for (std::int64_t i = first + threadIdx.x; i < end; i += quantise_threads) {
      const float size = fabsf(to_float(x[i]));
      odd |= size <= 3.402823466e38f ? 0 : 1;
      most = fmaxf(most, size);
    }
    most = block_max(most);
    const float s = block_max(odd) != 0 ? float_of_bits(0x7FC00000u) : most / Narrow<Q>::largest;
    if (threadIdx.x == 0) {
      scale[b] = s;
    }
    for (std::int64_t i = first + threadIdx.x; i < end; i += quantise_threads) {
      q[i] = Narrow<Q>::of(s > 0 ? to_float(x[i]) / s : 0.0f);
    }
  }
}

// Floor: the bytes of x and q.
template <class Q, class T>
__global__ void dequantise_blocks(T* x, const Q* q, const float* scale, std::int64_t n, std::int64_t block) {
  for (std::int64_t b = blockIdx.x; b * block < n; b += gridDim.x) {
    const std::int64_t first = b * block, end = first + block < n ? first + block : n;
    const float s = scale[b];
    for (std::int64_t i = first + threadIdx.x; i < end; i += quantise_threads) {
      x[i] = from_float<T>(widened(q[i]) * s);
    }
  }
}

// Calls fn with q's element, x's element and the grid.
template <class F>
void with_types(const Tensor& q, const Tensor& x, std::int64_t block, F&& fn) {
  if (x.elements() == 0) {
    return;
  }
  const Grid grid{blocks_for(x.elements(), block, quantise_most_blocks), quantise_threads};
  with_storage_type(q.dtype(),
                    [&](auto narrow) { with_float_type(x.dtype(), [&](auto wide) { fn(narrow, wide, grid); }); });
}

}  // namespace

void CudaStream::quantise(const Tensor& q, const Tensor& scale, const Tensor& x, std::int64_t block) {
  check_quantise("quantise", q, scale, x, block);
  with_types(q, x, block, [&](auto narrow, auto wide, const Grid& grid) {
    using Q = decltype(narrow);
    using T = decltype(wide);
    launch(quantise_blocks<Q, T>, grid, stream_, q.as<Q>(), scale.as<float>(), static_cast<const T*>(x.as<T>()),
           x.elements(), block);
  });
}

void CudaStream::dequantise(const Tensor& x, const Tensor& q, const Tensor& scale, std::int64_t block) {
  check_quantise("dequantise", q, scale, x, block);
  with_types(q, x, block, [&](auto narrow, auto wide, const Grid& grid) {
    using Q = decltype(narrow);
    using T = decltype(wide);
    launch(dequantise_blocks<Q, T>, grid, stream_, x.as<T>(), static_cast<const Q*>(q.as<Q>()),
           static_cast<const float*>(scale.as<float>()), x.elements(), block);
  });
}

}  // namespace orthant::cuda
