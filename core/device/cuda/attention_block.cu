// Attention of some queries to some keys, and the merge of such partial results.
#include "core/device/attention_check.h"
#include "core/device/cuda/attention_mma.h"
#include "core/device/cuda/attention_plain.h"
#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/device_math.h"

namespace orthant::cuda {
namespace {

constexpr int block_threads = 256;

// o, o_block [T_q, h c], lse, lse_block [batch, h, positions]. A warp has one row of a head.
template <int N>
__global__ void __launch_bounds__(block_threads)
    merge(float* o, float* lse, const float* o_block, const float* lse_block, std::int64_t rows, std::int64_t heads,
          std::int64_t positions, std::int64_t c) {
  constexpr std::int64_t warps = block_threads / warp_threads;
  for (std::int64_t row = blockIdx.x * warps + warp(); row < rows; row += gridDim.x * warps) {
    const std::int64_t t = row / heads, h = row % heads;
    const std::int64_t sum_at = (t / positions * heads + h) * positions + t % positions;
    const float total = lse[sum_at], added = lse_block[sum_at];
    if (added == -INFINITY) {
      continue;  // the block adds nothing, also where nothing was seen before
    }
    const float top = fmaxf(total, added);
    const float before = expf(total - top), more = expf(added - top), sum = before + more;
    const float keep = before / sum, take = more / sum;
    float* const to = o + row * c;
    const float* const from = o_block + row * c;
    for (std::int64_t e = lane() * N; e < c; e += warp_threads * N) {
      float x[N], y[N];
      load_vector(x, to + e);
      load_vector(y, from + e);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        x[i] = keep * x[i] + take * y[i];
      }
      store_vector(to + e, x);
    }
    __syncwarp();  // all lanes have read the old sum
    if (lane() == 0) {
      lse[sum_at] = top + logf(sum);
    }
  }
}

}  // namespace

void CudaStream::attention_block(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                                 const Tensor& q_position, const Tensor& k_position, const Tensor& first,
                                 const AttentionShape& shape) {
  require(shape.softcap == 0, "attention_block: this device cuts no scores off");
  check_attention_block(o, lse, q, k, v, q_position, k_position, first, shape);
  const SeenKeys seen{q_position, k_position, first};
  if (!mma_attention(*this, o, lse, q, k, v, seen, shape)) {
    plain_attention(*this, o, lse, q, k, v, seen, shape);
  }
}

void CudaStream::attention_merge(const Tensor& o, const Tensor& lse, const Tensor& o_block, const Tensor& lse_block,
                                 const AttentionShape& shape) {
  check_attention_merge(o, lse, o_block, lse_block, shape);
  const std::int64_t rows = lse.elements(), c = shape.head_dim;
  constexpr int wide = vector_elements<float>;
  const bool vectors = vectorizable(o.as<float>(), c) && vectorizable(o_block.as<float>(), c);
  const Grid grid{blocks_for(rows, block_threads / warp_threads, 32 * cuda().multiprocessors()), block_threads};
  launch(vectors ? merge<wide> : merge<1>, grid, handle(), o.as<float>(), lse.as<float>(), o_block.as<float>(),
         lse_block.as<float>(), rows, shape.heads, shape.positions, c);
}

void CudaStream::attention_block_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& d_o,
                                          const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                                          const Tensor& lse, const Tensor& q_position, const Tensor& k_position,
                                          const Tensor& first, const AttentionShape& shape) {
  check_attention_block_backward(dq, dk, dv, d_o, q, k, v, o, lse, q_position, k_position, first, shape);
  const SeenKeys seen{q_position, k_position, first};
  if (!mma_attention_backward(*this, dq, dk, dv, d_o, q, k, v, o, lse, seen, shape, true)) {
    plain_attention_backward(*this, dq, dk, dv, d_o, q, k, v, o, lse, seen, shape, true);
  }
}

}  // namespace orthant::cuda
