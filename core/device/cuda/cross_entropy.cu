// Softmax cross-entropy, its gradient in place of the logits: one block a row.
#include <limits>

#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/elements.h"
#include "core/device/operation_checks.h"

namespace orthant::cuda {
namespace {

// e^x for x <= 0, to about 1e-7 (1 + |x|) relative: what lies far below the greatest logit hardly counts. One
// multiplication and the hardware's 2^x, where expf needs twice the instructions; there are two a logit.
__device__ inline float exp_below(float x) {
  return exp2f(x * 1.44269504088896341f);
}

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

// Two blocks of a multiprocessor: one loads or stores while the other waits for its sums.
constexpr int entropy_most_threads = 512, blocks_at_once = 2;

// The greatest logit so far, and the sum of exp(logit - greatest).
struct Running {
  float top = minus_infinity, sum = 0.0f;

  template <int n>
  __device__ void add(const float (&x)[n]) {
    float greatest = x[0];
#pragma unroll
    for (int i = 1; i < n; ++i) {
      greatest = fmaxf(greatest, x[i]);
    }
    if (greatest > top) {
      sum *= exp_below(top - greatest);
      top = greatest;
    }
    const float shift = top > minus_infinity ? top : 0.0f;  // nothing but -infinity adds 0
#pragma unroll
    for (int i = 0; i < n; ++i) {
      sum += exp_below(x[i] - shift);
    }
  }
};

// Calls fn(chunk, column) for each of this thread's chunks of a row of v elements, in order, several on their way at
// once.
template <int width, class T, class F>
__device__ inline void for_my_chunks(const T* row, int v, F&& fn) {
  constexpr int unroll = width > 4 ? 2 : width > 1 ? 4 : 8;  // what the registers hold
  const int step = static_cast<int>(blockDim.x) * width;
  for (int first = static_cast<int>(threadIdx.x) * width; first < v; first += unroll * step) {
    Vector<T, width> loaded[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      if (first + u * step < v) {
        loaded[u] = *reinterpret_cast<const Vector<T, width>*>(row + first + u * step);
      }
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      if (first + u * step < v) {
        fn(loaded[u], first + u * step);
      }
    }
  }
}

template <int width, class T>
__device__ inline void widen(float (&to)[width], const Vector<T, width>& from) {
#pragma unroll
  for (int i = 0; i < width; ++i) {
    to[i] = to_float(from.v[i]);
  }
}

// The block's Running of a row, which is copied to `kept` on the way unless that is null.
template <int width, class T>
__device__ inline Running row_softmax(const T* row, T* kept, int v) {
  Running mine;
  for_my_chunks<width>(row, v, [&](const Vector<T, width>& chunk, int column) {
    if (kept != nullptr) {
      *reinterpret_cast<Vector<T, width>*>(kept + column) = chunk;
    }
    float x[width];
    widen(x, chunk);
    mine.add(x);
  });
  Running whole;
  whole.top = block_max(mine.top);
  whole.sum = block_sum(mine.top > minus_infinity ? mine.sum * exp_below(mine.top - whole.top) : mine.sum);
  return whole;
}

// row = factor * exp(from - top), and at column `own`, if it is one of the row's, `correct`. from: the row or its copy,
// of which each thread reads what it writes.
template <int width, class T>
__device__ inline void store_gradient(T* row, const T* from, int v, float top, float factor, std::int64_t own,
                                      float correct) {
  for_my_chunks<width>(from, v, [&](const Vector<T, width>& chunk, int column) {
    float x[width];
    widen(x, chunk);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      x[i] = factor * exp_below(x[i] - top);
    }
    store_vector(row + column, x);
  });
  // By the thread that has just stored the chunk.
  if (own >= 0 && own < v && own / width % blockDim.x == threadIdx.x) {
    row[own] = from_float<T>(correct);
  }
}

template <int width, class T>
__device__ inline void store_zero(T* row, int v) {
  constexpr float zero[width] = {};
  for (int j = static_cast<int>(threadIdx.x) * width; j < v; j += static_cast<int>(blockDim.x) * width) {
    store_vector(row + j, zero);
  }
}

// Floor: the logits read once and written once, if the row fits shared memory (keep); else read twice.
template <class T, int width, bool keep>
__global__ __launch_bounds__(entropy_most_threads, blocks_at_once) void cross_entropy_rows(float* loss, T* logits,
                                                                                           const std::int32_t* label,
                                                                                           int v, float scale) {
  T* row = logits + std::int64_t{blockIdx.x} * v;
  const std::int64_t own = label[blockIdx.x];
  if (own < 0) {
    store_zero<width>(row, v);
    if (threadIdx.x == 0) {
      loss[blockIdx.x] = 0.0f;
    }
    return;
  }
  // A label that no column has gets an infinite loss.
  const float chosen = own < v ? to_float(row[own]) : minus_infinity;
  T* kept = keep ? dynamic_shared<T>() : nullptr;
  const Running whole = row_softmax<width>(row, kept, v);  // after its barriers, `chosen` may be overwritten
  const float factor = scale / whole.sum;
  store_gradient<width>(row, keep ? kept : row, v, whole.top, factor, own,
                        factor * exp_below(chosen - whole.top) - scale);
  if (threadIdx.x == 0) {
    loss[blockIdx.x] = logf(whole.sum) - (chosen - whole.top);
  }
}

// Floor: the logits read once.
template <class T, int width>
__global__ __launch_bounds__(entropy_most_threads, blocks_at_once) void stats_rows(float* stats, const T* logits,
                                                                                   const std::int32_t* label, int v,
                                                                                   std::int64_t first_column) {
  const T* row = logits + std::int64_t{blockIdx.x} * v;
  const Running whole = row_softmax<width>(row, static_cast<T*>(nullptr), v);
  if (threadIdx.x == 0) {
    const std::int64_t own = label[blockIdx.x] < 0 ? -1 : label[blockIdx.x] - first_column;
    float* out = stats + std::int64_t{blockIdx.x} * 3;
    out[0] = whole.top;
    out[1] = whole.sum;
    out[2] = own >= 0 && own < v ? to_float(row[own]) : minus_infinity;
  }
}

// stats [slices, rows, 3]. Floor: the logits read once and written once.
template <class T, int width>
__global__ __launch_bounds__(entropy_most_threads,
                             blocks_at_once) void from_stats_rows(float* loss, T* logits, const std::int32_t* label,
                                                                  const float* stats, std::int64_t slices, int v,
                                                                  std::int64_t first_column, float scale) {
  T* row = logits + std::int64_t{blockIdx.x} * v;
  if (label[blockIdx.x] < 0) {
    store_zero<width>(row, v);
    if (threadIdx.x == 0) {
      loss[blockIdx.x] = 0.0f;
    }
    return;
  }
  // Few numbers: each thread merges them by itself, in the order of the slices.
  const std::int64_t stride = std::int64_t{gridDim.x} * 3;
  const float* mine = stats + std::int64_t{blockIdx.x} * 3;
  float top = minus_infinity, chosen = minus_infinity, sum = 0.0f;
  for (std::int64_t slice = 0; slice < slices; ++slice) {
    top = fmaxf(top, mine[slice * stride]);
    chosen = fmaxf(chosen, mine[slice * stride + 2]);
  }
  for (std::int64_t slice = 0; slice < slices; ++slice) {
    sum += mine[slice * stride + 1] * exp_below(mine[slice * stride] - top);
  }
  const std::int64_t own = label[blockIdx.x] - first_column;
  const float factor = scale / sum;
  // The label's logit, where it is here, is `chosen`, unless that is NaN; then so is the sum.
  store_gradient<width>(row, row, v, top, factor, own, factor * exp_below(chosen - top) - scale);
  if (threadIdx.x == 0) {
    loss[blockIdx.x] = logf(sum) - (chosen - top);
  }
}

// One block a row, each thread with about four chunks, if rows are long.
template <int width>
Grid grid_of_rows(std::int64_t rows, std::int64_t v) {
  const std::int64_t warps = (v / width + 4 * warp_threads - 1) / (4 * warp_threads);
  return Grid{blocks_for(rows, 1),
              static_cast<int>(std::clamp<std::int64_t>(warps, 4, entropy_most_threads / warp_threads)) * warp_threads};
}

// fn(T, width as an integral constant): chunks of 16 bytes where rows allow it.
template <class F>
void with_width(const Tensor& logits, F&& fn) {
  with_float_type(logits.dtype(), [&](auto type) {
    using T = decltype(type);
    if (vectorizable(logits.as<T>(), logits.dim(1))) {
      fn(type, std::integral_constant<int, vector_elements<T>>{});
    } else {
      fn(type, std::integral_constant<int, 1>{});
    }
  });
}

// The columns, counted in 32 bits in the kernels.
int columns_of(const char* operation, const Tensor& logits) {
  require(logits.dim(1) < (std::int64_t{1} << 30), "{}: logits {} are wider than 2^30", operation, logits.shape());
  return static_cast<int>(logits.dim(1));
}

// Dynamic shared memory that a block may have beside the few words of its sums.
std::size_t shared_limit(const CudaDevice& device) {
  return device.shared_memory() - 1024;
}

}  // namespace

void CudaStream::cross_entropy(const Tensor& loss, const Tensor& logits, const Tensor& label, float scale) {
  check_cross_entropy(loss, logits, label);
  const std::int64_t rows = logits.dim(0);
  const int v = columns_of("cross_entropy", logits);
  const std::size_t row_bytes = static_cast<std::size_t>(v) * size_of(logits.dtype());
  const bool keep = row_bytes <= shared_limit(device_);
  with_width(logits, [&](auto type, auto width) {
    using T = decltype(type);
    Grid grid = grid_of_rows<width()>(rows, v);
    grid.shared = device_.shared(keep ? row_bytes : 0);
    launch(keep ? cross_entropy_rows<T, width(), true> : cross_entropy_rows<T, width(), false>, grid, stream_,
           loss.as<float>(), logits.as<T>(), label.as<std::int32_t>(), v, scale);
  });
}

void CudaStream::cross_entropy_stats(const Tensor& stats, const Tensor& logits, const Tensor& label,
                                     std::int64_t first_column) {
  check_cross_entropy_stats(stats, logits, label, first_column);
  const std::int64_t rows = logits.dim(0);
  const int v = columns_of("cross_entropy_stats", logits);
  with_width(logits, [&](auto type, auto width) {
    using T = decltype(type);
    launch(stats_rows<T, width()>, grid_of_rows<width()>(rows, v), stream_, stats.as<float>(), logits.as<T>(),
           label.as<std::int32_t>(), v, first_column);
  });
}

void CudaStream::cross_entropy_from_stats(const Tensor& loss, const Tensor& logits, const Tensor& label,
                                          const Tensor& stats, std::int64_t first_column, float scale) {
  check_cross_entropy_from_stats(loss, logits, label, stats, first_column);
  const std::int64_t rows = logits.dim(0);
  const int v = columns_of("cross_entropy_from_stats", logits);
  with_width(logits, [&](auto type, auto width) {
    using T = decltype(type);
    launch(from_stats_rows<T, width()>, grid_of_rows<width()>(rows, v), stream_, loss.as<float>(), logits.as<T>(),
           label.as<std::int32_t>(), stats.as<float>(), stats.dim(0), v, first_column, scale);
  });
}

}  // namespace orthant::cuda
