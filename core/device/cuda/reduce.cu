// sum and sum_squares: fp64 sums of blocks, then of the blocks in order, by the last of them. Which thread adds what
// depends on the number of elements alone, neither on their address nor on the GPU.
#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/elements.h"
#include "core/device/cuda/last_block.h"
#include "core/device/operation_checks.h"

namespace orthant::cuda {
namespace {

constexpr int sum_threads = 256, sum_width = 8, sum_unroll = 4;
constexpr std::int64_t sum_most_blocks = 1024;

struct Plain {
  static __device__ double term(double x) { return x; }
};
struct Square {
  static __device__ double term(double x) { return x * x; }
};

// *out += the sum; partial f64[blocks]. Floor: the bytes of x.
template <class Term, class T, bool aligned>
__global__ void block_sums(double* out, double* partial, unsigned* counter, const T* x, std::int64_t n) {
  const std::int64_t stride = std::int64_t{gridDim.x} * sum_threads * sum_width;
  double sums[sum_unroll] = {};
  for (std::int64_t first = (std::int64_t{blockIdx.x} * sum_threads + threadIdx.x) * sum_width; first < n;
       first += sum_unroll * stride) {
    float loaded[sum_unroll][sum_width];
#pragma unroll
    for (int u = 0; u < sum_unroll; ++u) {
      const std::int64_t at = first + u * stride;
      if (aligned && at + sum_width <= n) {
        load_vector(loaded[u], x + at);
      } else {
#pragma unroll
        for (int i = 0; i < sum_width; ++i) {
          loaded[u][i] = at + i < n ? to_float(x[at + i]) : 0.0f;
        }
      }
    }
#pragma unroll
    for (int u = 0; u < sum_unroll; ++u) {
#pragma unroll
      for (int i = 0; i < sum_width; ++i) {
        sums[u] += Term::term(static_cast<double>(loaded[u][i]));
      }
    }
  }
  double sum = block_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sum;
  }
  if (!last_block(counter, gridDim.x)) {
    return;
  }
  sum = 0;
  for (unsigned i = threadIdx.x; i < gridDim.x; i += sum_threads) {
    sum += partial[i];
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) {
    *out += sum;
  }
}

// x f64 [n], in order: a few sums of sums.
__global__ void add_in_order(double* out, const double* x, std::int64_t n) {
  if (threadIdx.x == 0) {
    double sum = *out;
    for (std::int64_t i = 0; i < n; ++i) {
      sum += x[i];
    }
    *out = sum;
  }
}

template <class Term>
void add_sum(CudaStream& stream, const Tensor& out, const Tensor& x) {
  const std::int64_t n = x.elements();
  if (n == 0) {
    return;
  }
  const unsigned blocks = blocks_for(n, std::int64_t{sum_threads} * sum_width * sum_unroll, sum_most_blocks);
  auto* partial = static_cast<double*>(stream.scratch(0, blocks * sizeof(double)));
  with_float_type(x.dtype(), [&](auto type) {
    using T = decltype(type);
    const auto* from = x.as<T>();
    launch(all_aligned<sum_width>(from) ? block_sums<Term, T, true> : block_sums<Term, T, false>,
           Grid{blocks, sum_threads}, stream.handle(), out.as<double>(), partial, stream.counters(1), from, n);
  });
}

}  // namespace

void CudaStream::sum_squares(const Tensor& out, const Tensor& x) {
  check_sum_squares(out, x);
  add_sum<Square>(*this, out, x);
}

void CudaStream::sum(const Tensor& out, const Tensor& x) {
  check_sum(out, x);
  if (x.dtype() == DType::f64) {
    launch(add_in_order, Grid{1, warp_threads}, stream_, out.as<double>(), x.as<double>(), x.elements());
    return;
  }
  add_sum<Plain>(*this, out, x);
}

}  // namespace orthant::cuda
