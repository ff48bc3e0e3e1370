// Attention sinks: a score of each head that joins the softmax after all keys have.
#include "core/device/attention_check.h"
#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/device_math.h"
#include "core/device/cuda/float_type.h"

namespace orthant::cuda {
namespace {

constexpr int sink_threads = 256, sink_warps = sink_threads / warp_threads;

// o [T_q, h c], lse [batch, h, positions], sinks [h]. A warp has one row of a head. Floor: o read and written.
template <class T, int N>
__global__ void __launch_bounds__(sink_threads) join_sinks(T* o, float* lse, const float* sinks, std::int64_t rows,
                                                           std::int64_t heads, std::int64_t positions, std::int64_t c) {
  for (std::int64_t row = std::int64_t{blockIdx.x} * sink_warps + warp(); row < rows;
       row += std::int64_t{gridDim.x} * sink_warps) {
    const std::int64_t t = row / heads, h = row % heads;
    const std::int64_t sum_at = (t / positions * heads + h) * positions + t % positions;
    const float total = lse[sum_at], sink = sinks[h];
    if (sink == -INFINITY) {
      continue;  // it adds nothing, also where nothing was seen
    }
    const float top = fmaxf(total, sink);
    const float keys = expf(total - top), sum = keys + expf(sink - top), keep = keys / sum;
    T* const to = o + row * c;
    for (std::int64_t e = lane() * N; e < c; e += warp_threads * N) {
      float x[N];
      load_vector(x, to + e);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        x[i] *= keep;
      }
      store_vector(to + e, x);
    }
    __syncwarp();  // all lanes have read the old sum
    if (lane() == 0) {
      lse[sum_at] = top + logf(sum);
    }
  }
}

// A block has one head; its warps take rows in turn. Floor: o and d_o read.
template <class T, int N>
__global__ void __launch_bounds__(sink_threads)
    sink_gradients(float* dsinks, const T* d_o, const T* o, const float* lse, const float* sinks, std::int64_t tokens,
                   std::int64_t heads, std::int64_t positions, std::int64_t c) {
  const std::int64_t h = blockIdx.x;
  const float sink = sinks[h];
  double sum = 0;
  for (std::int64_t t = warp(); t < tokens; t += sink_warps) {
    const T *const a = d_o + (t * heads + h) * c, *const b = o + (t * heads + h) * c;
    float dot = 0;
    for (std::int64_t e = lane() * N; e < c; e += warp_threads * N) {
      float x[N], y[N];
      load_vector(x, a + e);
      load_vector(y, b + e);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        dot += x[i] * y[i];
      }
    }
    const float total = lse[(t / positions * heads + h) * positions + t % positions];
    sum += static_cast<double>(expf(sink - total)) * static_cast<double>(dot);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) {
    dsinks[h] -= static_cast<float>(sum);
  }
}

}  // namespace

void CudaStream::attention_sinks(const Tensor& o, const Tensor& lse, const Tensor& sinks, const AttentionShape& shape) {
  check_attention_sinks("attention_sinks", o, lse, sinks, shape);
  const std::int64_t rows = lse.elements(), c = shape.head_dim;
  if (rows == 0) {
    return;
  }
  with_float_type(o.dtype(), [&](auto type) {
    using T = decltype(type);
    const Grid grid{blocks_for(rows, sink_warps, 32 * cuda().multiprocessors()), sink_threads};
    launch(vectorizable(o.as<T>(), c) ? join_sinks<T, vector_elements<T>> : join_sinks<T, 1>, grid, handle(), o.as<T>(),
           lse.as<float>(), sinks.as<float>(), rows, shape.heads, shape.positions, c);
  });
}

void CudaStream::attention_sinks_backward(const Tensor& dsinks, const Tensor& d_o, const Tensor& o, const Tensor& lse,
                                          const Tensor& sinks, const AttentionShape& shape) {
  check_attention_sinks_backward(dsinks, d_o, o, lse, sinks, shape);
  const std::int64_t c = shape.head_dim;
  with_float_type(o.dtype(), [&](auto type) {
    using T = decltype(type);
    const bool vectors = vectorizable(o.as<T>(), c) && vectorizable(d_o.as<T>(), c);
    launch(vectors ? sink_gradients<T, vector_elements<T>> : sink_gradients<T, 1>,
           Grid{static_cast<unsigned>(shape.heads), sink_threads}, handle(), dsinks.as<float>(), d_o.as<T>(), o.as<T>(),
           lse.as<float>(), sinks.as<float>(), o.dim(0), shape.heads, shape.positions, c);
  });
}

}  // namespace orthant::cuda
