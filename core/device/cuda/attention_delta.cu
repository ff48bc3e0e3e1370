// What the backward of a softmax needs of each row: d_o . o.
#include "core/device/cuda/attention_plain.h"
#include "core/device/cuda/device_math.h"
#include "core/device/cuda/float_type.h"

namespace orthant::cuda {
namespace {

constexpr int delta_threads = 256, delta_warps = delta_threads / warp_threads;

// delta [batch, h, positions]; d_o, o [T_q, h c]. A warp has one row of a head. Floor: d_o and o read.
template <class T>
__global__ void __launch_bounds__(delta_threads)
    row_products(float* delta, const T* d_o, const T* o, std::int64_t rows, std::int64_t heads, std::int64_t positions,
                 std::int64_t c) {
  for (std::int64_t row = std::int64_t{blockIdx.x} * delta_warps + warp(); row < rows;
       row += std::int64_t{gridDim.x} * delta_warps) {
    const std::int64_t t = row / heads, h = row % heads, at = row * c;
    float sum = 0.0f;
    for (std::int64_t e = lane(); e < c; e += warp_threads) {
      sum += to_float(d_o[at + e]) * to_float(o[at + e]);
    }
    sum = warp_sum(sum);
    if (lane() == 0) {
      delta[(t / positions * heads + h) * positions + t % positions] = sum;
    }
  }
}

}  // namespace

void attention_delta(CudaStream& stream, float* delta, const Tensor& d_o, const Tensor& o, const AttentionShape& s) {
  const std::int64_t rows = s.batch * s.positions * s.heads;
  with_float_type(o.dtype(), [&](auto type) {
    using T = decltype(type);
    launch(row_products<T>, Grid{blocks_for(rows, delta_warps, 32 * stream.cuda().multiprocessors()), delta_threads},
           stream.handle(), delta, d_o.as<T>(), o.as<T>(), rows, s.heads, s.positions, s.head_dim);
  });
}

}  // namespace orthant::cuda
