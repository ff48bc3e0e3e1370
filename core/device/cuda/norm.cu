// LayerNorm (Ba et al., 2016) and RMSNorm (Zhang and Sennrich, 2019), forward.
#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/elements.h"
#include "core/device/cuda/row_part.h"
#include "core/device/operation_checks.h"

namespace orthant::cuda {
namespace {

constexpr int most_chunks = 4;  // of a thread's part of a row, in registers
constexpr int rows_of_block = 4, most_threads = 512, long_row_threads = 1024;

// What a block of each form has: with more threads, registers would not do.
constexpr int threads_of_block(int chunks, bool one_warp) {
  return chunks == 0 ? long_row_threads : one_warp ? rows_of_block * warp_threads : most_threads;
}

// y, x [rows, d], stats [rows, 2]. A warp (one_warp) or a block a row, which is read once and kept in registers; with
// chunks == 0, for rows too long for that, it is read for the mean, the variance and the result.
// Floor: x and y once each (weight and bias stay in cache).
template <class T, int chunks, bool whole, bool one_warp>
__global__ __launch_bounds__(threads_of_block(chunks, one_warp)) void norm_rows(T* y, float* stats, const T* x,
                                                                                const float* weight, const float* bias,
                                                                                std::int64_t rows, std::int64_t d,
                                                                                bool centred, float eps) {
  constexpr int n = vector_elements<T>;
  constexpr bool kept = chunks > 0;
  const int threads = one_warp ? warp_threads : static_cast<int>(blockDim.x);
  const int me = one_warp ? lane() : static_cast<int>(threadIdx.x);
  const std::int64_t step = std::int64_t{gridDim.x} * (static_cast<int>(blockDim.x) / threads);
  const std::int64_t parts = kept ? chunks : (d + n * threads - 1) / (n * threads);
  const auto sum_of_row = [](float v) {
    if constexpr (one_warp) {
      return warp_sum(v);
    } else {
      return block_sum(v);
    }
  };
  for (std::int64_t row = std::int64_t{blockIdx.x} * (static_cast<int>(blockDim.x) / threads) + (one_warp ? warp() : 0);
       row < rows; row += step) {
    const T* in = x + row * d;
    Vector<T, n> v[kept ? chunks : 1];  // as it lies in memory: half the registers for bf16
    const auto column_of = [&](std::int64_t part) { return (part * threads + me) * n; };
    const auto fetch = [&](std::int64_t part) -> const Vector<T, n>& {
      if constexpr (!kept) {
        v[0] = raw_part<n, whole>(in, column_of(part), d);
      }
      return v[kept ? part : 0];
    };
    if constexpr (kept) {
#pragma unroll
      for (int part = 0; part < chunks; ++part) {
        v[part] = raw_part<n, whole>(in, column_of(part), d);
      }
    }
    float mean = 0.0f;
    if (centred) {
      float sum = 0.0f;
#pragma unroll
      for (std::int64_t part = 0; part < parts; ++part) {
        const Vector<T, n>& e = fetch(part);
#pragma unroll
        for (int i = 0; i < n; ++i) {
          sum += to_float(e.v[i]);
        }
      }
      mean = sum_of_row(sum) / static_cast<float>(d);
    }
    float squares = 0.0f;
#pragma unroll
    for (std::int64_t part = 0; part < parts; ++part) {
      const Vector<T, n>& e = fetch(part);
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const float from_mean = to_float(e.v[i]) - mean;
        squares += column_of(part) + i < d ? from_mean * from_mean : 0.0f;
      }
    }
    const float inverse = 1.0f / sqrtf(sum_of_row(squares) / static_cast<float>(d) + eps);
#pragma unroll
    for (std::int64_t part = 0; part < parts; ++part) {
      const Vector<T, n>& e = fetch(part);
      float w[n], out[n];
      load_part<n, whole>(w, weight, column_of(part), d);
#pragma unroll
      for (int i = 0; i < n; ++i) {
        out[i] = (to_float(e.v[i]) - mean) * inverse * w[i];
      }
      if (bias != nullptr) {
        float b[n];
        load_part<n, whole>(b, bias, column_of(part), d);
#pragma unroll
        for (int i = 0; i < n; ++i) {
          out[i] += b[i];
        }
      }
      store_part<n, whole>(y + row * d, out, column_of(part), d);
    }
    if (me == 0) {
      stats[row * 2] = mean;
      stats[row * 2 + 1] = inverse;
    }
  }
}

}  // namespace

void CudaStream::norm(const Tensor& y, const Tensor& stats, const Tensor& x, const Tensor& weight, const Tensor& bias,
                      NormKind kind, float eps) {
  check_norm(y, stats, x, weight, bias);
  const std::int64_t rows = x.dim(0), d = x.dim(1);
  with_float_type(x.dtype(), [&](auto type) {
    using T = decltype(type);
    constexpr int n = vector_elements<T>;
    const bool whole = d % n == 0 && all_aligned<n>(y.as<T>(), x.as<T>(), weight.as<float>(), bias.as<float>());
    const int threads = threads_of_row(d, n, most_chunks);
    const std::int64_t most = 32 * std::int64_t{device_.multiprocessors()};
    const auto run = [&](auto* kernel, const Grid& grid) {
      launch(kernel, grid, stream_, y.as<T>(), stats.as<float>(), x.as<T>(), weight.as<float>(), bias.as<float>(), rows,
             d, kind == NormKind::layernorm, eps);
    };
    if (threads == warp_threads) {
      run(whole ? norm_rows<T, most_chunks, true, true> : norm_rows<T, most_chunks, false, true>,
          Grid{blocks_for(rows, rows_of_block, most), rows_of_block * warp_threads});
    } else if (threads <= most_threads) {
      run(whole ? norm_rows<T, most_chunks, true, false> : norm_rows<T, most_chunks, false, false>,
          Grid{blocks_for(rows, 1, most), threads});
    } else {
      run(norm_rows<T, 0, false, false>, Grid{blocks_for(rows, 1, most), long_row_threads});
    }
  });
}

}  // namespace orthant::cuda
