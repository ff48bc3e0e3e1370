// Gradients of LayerNorm and RMSNorm. dweight and dbias are summed over each block's rows, then over the blocks in
// order; how rows are dealt out depends on their number alone.
#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/elements.h"
#include "core/device/cuda/row_part.h"
#include "core/device/operation_checks.h"

namespace orthant::cuda {
namespace {

// Blocks of rows: four for each multiprocessor of an H100 or H200.
constexpr std::int64_t backward_most_blocks = 528;
constexpr int backward_most_threads = 512, backward_long_row_threads = 1024;

// What a row's gradient needs, of g = dy * weight: dx = inverse * (g - shift - xhat * slope).
struct RowSums {
  float sum, product;  // of g, and of g * xhat
};

// The sums over the block, the same bits in each thread. One barrier; `turn` alternates between calls, so that none
// writes what a slower warp still reads.
__device__ inline RowSums block_sums(RowSums s, int turn) {
  ORTHANT_SHARED(float, of_warp, [2][2][32]);
  s.sum = warp_sum(s.sum);
  s.product = warp_sum(s.product);
  if (lane() == 0) {
    of_warp[turn][0][warp()] = s.sum;
    of_warp[turn][1][warp()] = s.product;
  }
  __syncthreads();
  const bool mine = lane() < static_cast<int>(blockDim.x) / warp_threads;
  return {warp_sum(mine ? of_warp[turn][0][lane()] : 0.0f), warp_sum(mine ? of_warp[turn][1][lane()] : 0.0f)};
}

// A block has its rows one after another; each thread the same columns of all, with their sums in registers. With
// `ahead`, the next row is on its way while one is worked on, and weights are kept. partial [blocks, 2, d]: dweight,
// dbias. Floor: dx twice, dy and x once. The partial sums add 16 d bytes a block.
template <class T, int chunks, bool whole, bool ahead>
__global__ __launch_bounds__(backward_most_threads) void norm_backward_rows(T* dx, float* partial, const T* dy,
                                                                            const T* x, const float* stats,
                                                                            const float* weight, std::int64_t rows,
                                                                            std::int64_t d, bool centred) {
  constexpr int n = vector_elements<T>;
  const auto column_of = [&](int part) {
    return (part * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * n;
  };
  const std::int64_t blocks = gridDim.x, block = blockIdx.x;
  const std::int64_t begin = rows * block / blocks, end = rows * (block + 1) / blocks;
  float kept_weight[ahead ? chunks : 1][n], dweight[chunks][n] = {}, dbias[chunks][n] = {};
  Vector<T, n> now_x[chunks], now_dy[chunks], next_x[chunks], next_dy[chunks];
  const auto fetch = [&](Vector<T, n>(&to_x)[chunks], Vector<T, n>(&to_dy)[chunks], std::int64_t row) {
#pragma unroll
    for (int part = 0; part < chunks; ++part) {
      to_x[part] = raw_part<n, whole>(x + row * d, column_of(part), d);
      to_dy[part] = raw_part<n, whole>(dy + row * d, column_of(part), d);
    }
  };
#pragma unroll
  for (int part = 0; part < chunks; ++part) {
    if constexpr (ahead) {
      load_part<n, whole>(kept_weight[part], weight, column_of(part), d);
    }
  }
  // Without room for them, weights come from the cache whenever they are wanted.
  const auto weight_of = [&](int part) -> const float(&)[n] {
    if constexpr (!ahead) {
      load_part<n, whole>(kept_weight[0], weight, column_of(part), d);
    }
    return kept_weight[ahead ? part : 0];
  };
  if (begin < end) {
    fetch(now_x, now_dy, begin);
  }
  const float per_column = 1.0f / static_cast<float>(d);
  for (std::int64_t row = begin; row < end; ++row) {
    RowSums sums{0.0f, 0.0f};
    {
      const float mean = stats[row * 2], inverse = stats[row * 2 + 1];
#pragma unroll
      for (int part = 0; part < chunks; ++part) {
        const float(&w)[n] = weight_of(part);
#pragma unroll
        for (int i = 0; i < n; ++i) {
          // Behind the row's end dy and weight are 0, and what xhat is does not matter.
          const float g = to_float(now_dy[part].v[i]) * w[i];
          sums.sum += g;
          sums.product += g * ((to_float(now_x[part].v[i]) - mean) * inverse);
        }
      }
    }
    Vector<T, n> old_dx[chunks];
#pragma unroll
    for (int part = 0; part < chunks; ++part) {
      old_dx[part] = raw_part<n, whole>(dx + row * d, column_of(part), d);
    }
    if (ahead && row + 1 < end) {
      fetch(next_x, next_dy, row + 1);
    }
    sums = block_sums(sums, static_cast<int>(row & 1));
    const float shift = centred ? sums.sum * per_column : 0.0f, slope = sums.product * per_column;
    // Read once more: else the compiler keeps every xhat in a register since before the barrier.
    const float mean = stats[row * 2], inverse = stats[row * 2 + 1];
#pragma unroll
    for (int part = 0; part < chunks; ++part) {
      const float(&w)[n] = weight_of(part);
      float gradient[n];
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const float out = to_float(now_dy[part].v[i]), xhat = (to_float(now_x[part].v[i]) - mean) * inverse;
        gradient[i] = to_float(old_dx[part].v[i]) + inverse * (out * w[i] - shift - xhat * slope);
        dweight[part][i] += out * xhat;
        dbias[part][i] += out;
      }
      store_part<n, whole>(dx + row * d, gradient, column_of(part), d);
      if (ahead) {
        now_x[part] = next_x[part];
        now_dy[part] = next_dy[part];
      }
    }
    if (!ahead && row + 1 < end) {
      fetch(now_x, now_dy, row + 1);
    }
  }
  float* mine = partial + block * 2 * d;
#pragma unroll
  for (int part = 0; part < chunks; ++part) {
    store_part<n, whole>(mine, dweight[part], column_of(part), d);
    store_part<n, whole>(mine + d, dbias[part], column_of(part), d);
  }
}

// The same for rows too long for registers: each element is read twice, and sums lie in `partial` all the time.
template <class T>
__global__ __launch_bounds__(backward_long_row_threads) void norm_backward_long_rows(T* dx, float* partial, const T* dy,
                                                                                     const T* x, const float* stats,
                                                                                     const float* weight,
                                                                                     std::int64_t rows, std::int64_t d,
                                                                                     bool centred) {
  const std::int64_t blocks = gridDim.x, block = blockIdx.x;
  float* mine = partial + block * 2 * d;
  for (std::int64_t j = threadIdx.x; j < 2 * d; j += blockDim.x) {
    mine[j] = 0.0f;
  }
  __syncthreads();  // of the halves, other threads cleared some
  const std::int64_t end = rows * (block + 1) / blocks;
  for (std::int64_t row = rows * block / blocks; row < end; ++row) {
    const float mean = stats[row * 2], inverse = stats[row * 2 + 1];
    const T *in = x + row * d, *out = dy + row * d;
    RowSums sums{0.0f, 0.0f};
    for (std::int64_t j = threadIdx.x; j < d; j += blockDim.x) {
      const float g = to_float(out[j]) * weight[j];
      sums.sum += g;
      sums.product += g * ((to_float(in[j]) - mean) * inverse);
    }
    sums = block_sums(sums, static_cast<int>(row & 1));
    const float per_column = 1.0f / static_cast<float>(d);
    const float shift = centred ? sums.sum * per_column : 0.0f, slope = sums.product * per_column;
    for (std::int64_t j = threadIdx.x; j < d; j += blockDim.x) {
      const float v = to_float(out[j]), xhat = (to_float(in[j]) - mean) * inverse;
      T& to = dx[row * d + j];
      to = from_float<T>(to_float(to) + inverse * (v * weight[j] - shift - xhat * slope));
      mine[j] += v * xhat;
      mine[d + j] += v;
    }
  }
}

// to[j] += the sum over the blocks of partial[block, j], j < d, rows of `partial` being 2 d long. Blocks of 32 columns,
// and 16 warps that each have every 16th of the blocks.
constexpr int sum_warps = 16;

__global__ void add_block_sums(float* to, const float* partial, int blocks, std::int64_t d) {
  ORTHANT_SHARED(float, of_warp, [sum_warps][warp_threads]);
  const std::int64_t column = std::int64_t{blockIdx.x} * warp_threads + lane();
  float sum = 0.0f;
  if (column < d) {
#pragma unroll 8
    for (int block = warp(); block < blocks; block += sum_warps) {
      sum += partial[block * 2 * d + column];
    }
  }
  of_warp[warp()][lane()] = sum;
  __syncthreads();
  if (warp() == 0 && column < d) {
    float total = of_warp[0][lane()];
#pragma unroll
    for (int i = 1; i < sum_warps; ++i) {
      total += of_warp[i][lane()];
    }
    to[column] += total;
  }
}

}  // namespace

void CudaStream::norm_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                               const Tensor& x, const Tensor& stats, const Tensor& weight, NormKind kind) {
  check_norm_backward(dx, dweight, dbias, dy, x, stats, weight);
  const std::int64_t rows = x.dim(0), d = x.dim(1);
  if (rows == 0 || d == 0) {
    return;
  }
  const auto blocks = static_cast<unsigned>(std::min(rows, backward_most_blocks));
  auto* partial = static_cast<float*>(scratch(0, blocks * static_cast<std::size_t>(2 * d) * sizeof(float)));
  with_float_type(x.dtype(), [&](auto type) {
    using T = decltype(type);
    constexpr int n = vector_elements<T>;
    const bool whole = d % n == 0 && all_aligned<n>(dx.as<T>(), dy.as<T>(), x.as<T>(), weight.as<float>());
    const auto run = [&](auto* kernel, int threads) {
      launch(kernel, Grid{blocks, threads}, stream_, dx.as<T>(), partial, dy.as<T>(), x.as<T>(), stats.as<float>(),
             weight.as<float>(), rows, d, kind == NormKind::layernorm);
    };
    // 8 or 16 columns a thread: more do not fit the registers, nor does the next row beside 16.
    constexpr int few = 8 / n, many = 16 / n;
    if (threads_of_row(d, n, few) <= backward_most_threads) {
      run(whole ? norm_backward_rows<T, few, true, true> : norm_backward_rows<T, few, false, true>,
          threads_of_row(d, n, few));
    } else if (whole && threads_of_row(d, n, many) <= backward_most_threads) {
      run(norm_backward_rows<T, many, true, false>, threads_of_row(d, n, many));
    } else {
      run(norm_backward_long_rows<T>, backward_long_row_threads);
    }
  });
  const Grid grid{blocks_for(d, warp_threads), sum_warps * warp_threads};
  launch(add_block_sums, grid, stream_, dweight.as<float>(), partial, static_cast<int>(blocks), d);
  if (dbias.defined()) {
    launch(add_block_sums, grid, stream_, dbias.as<float>(), partial + d, static_cast<int>(blocks), d);
  }
}

}  // namespace orthant::cuda
