// reduce_matrix: fp64 sums, or the largest, of rows, of columns and of all. Which thread joins what depends on the
// shape alone.
#include <limits>

#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/elements.h"
#include "core/device/cuda/last_block.h"
#include "core/device/operation_checks.h"

namespace orthant::cuda {
namespace {

constexpr int row_threads = 256, column_warps = 16;
constexpr std::int64_t most_row_blocks = 4096;

struct Sum {
  static constexpr double none = 0.0;
  static __device__ double join(double a, double b) { return a + b; }
};
struct Largest {
  static constexpr double none = -std::numeric_limits<double>::infinity();
  // NaN where either is.
  static __device__ double join(double a, double b) { return a > b || a != a ? a : b; }
};

// Over the threads of a block, the same bits in each of them. Two barriers.
template <class How>
__device__ double join_block(double x) {
  ORTHANT_SHARED(double, of_warp, [row_threads / warp_threads]);
  const auto join_warp = [](double v) {
#pragma unroll
    for (int offset = warp_threads / 2; offset > 0; offset /= 2) {
      v = How::join(v, __shfl_xor_sync(all_lanes, v, offset));
    }
    return v;
  };
  x = join_warp(x);
  __syncthreads();  // an earlier call has been read
  if (lane() == 0) {
    of_warp[warp()] = x;
  }
  __syncthreads();
  return join_warp(lane() < row_threads / warp_threads ? of_warp[lane()] : How::none);
}

// rows[r] and, where `partial` is given, f64 [rows] for `all`. A block takes every gridDim.x-th row.
template <class How>
__global__ void reduce_rows(double* to, double* all, double* partial, unsigned* counter, const float* x,
                            std::int64_t rows, std::int64_t columns) {
  double of_block = How::none;
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    double found = How::none;
    for (std::int64_t column = threadIdx.x; column < columns; column += row_threads) {
      found = How::join(found, static_cast<double>(x[row * columns + column]));
    }
    found = join_block<How>(found);
    of_block = How::join(of_block, found);
    if (to != nullptr && threadIdx.x == 0) {
      to[row] = How::join(to[row], found);
    }
  }
  if (all == nullptr) {
    return;
  }
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = of_block;
  }
  if (!last_block(counter, gridDim.x)) {
    return;
  }
  double found = How::none;
  for (unsigned i = threadIdx.x; i < gridDim.x; i += row_threads) {
    found = How::join(found, partial[i]);
  }
  found = join_block<How>(found);
  if (threadIdx.x == 0) {
    *all = How::join(*all, found);
  }
}

// Blocks of 32 columns, and 16 warps that each have every 16th row.
template <class How>
__global__ void reduce_columns(double* to, const float* x, std::int64_t rows, std::int64_t columns) {
  ORTHANT_SHARED(double, of_warp, [column_warps][warp_threads]);
  const std::int64_t column = std::int64_t{blockIdx.x} * warp_threads + lane();
  double found = How::none;
  if (column < columns) {
#pragma unroll 4
    for (std::int64_t row = warp(); row < rows; row += column_warps) {
      found = How::join(found, static_cast<double>(x[row * columns + column]));
    }
  }
  of_warp[warp()][lane()] = found;
  __syncthreads();
  if (warp() == 0 && column < columns) {
    double joined = to[column];
#pragma unroll
    for (int i = 0; i < column_warps; ++i) {
      joined = How::join(joined, of_warp[i][lane()]);
    }
    to[column] = joined;
  }
}

template <class How>
void reduce(CudaStream& stream, const Tensor& rows, const Tensor& columns, const Tensor& all, const Tensor& x) {
  const std::int64_t r = x.dim(0), c = x.dim(1);
  if (r == 0 || c == 0) {
    return;
  }
  const auto* from = x.as<float>();
  if (rows.defined() || all.defined()) {
    const auto blocks = static_cast<unsigned>(std::min(r, most_row_blocks));
    auto* partial = static_cast<double*>(stream.scratch(0, blocks * sizeof(double)));
    launch(reduce_rows<How>, Grid{blocks, row_threads}, stream.handle(), rows.as<double>(), all.as<double>(), partial,
           stream.counters(1), from, r, c);
  }
  if (columns.defined()) {
    const auto blocks = static_cast<unsigned>((c + warp_threads - 1) / warp_threads);
    launch(reduce_columns<How>, Grid{blocks, column_warps * warp_threads}, stream.handle(), columns.as<double>(), from,
           r, c);
  }
}

}  // namespace

void CudaStream::reduce_matrix(const Tensor& rows, const Tensor& columns, const Tensor& all, const Tensor& x,
                               ReduceOp how) {
  check_reduce_matrix(rows, columns, all, x, how);
  how == ReduceOp::sum ? reduce<Sum>(*this, rows, columns, all, x) : reduce<Largest>(*this, rows, columns, all, x);
}

}  // namespace orthant::cuda
