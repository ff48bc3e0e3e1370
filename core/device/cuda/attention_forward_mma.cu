#include "core/device/cuda/attention_choice.h"
#include "core/device/cuda/attention_mma.h"
#include "core/device/cuda/attention_mma_tile.h"
#include "core/device/cuda/float_type.h"

namespace orthant::cuda::attention_mma {
namespace {

// The sides of the forward's tiles, the same on every GPU, as the order of a row's sums is.
template <int D>
struct ForwardTile {
  static constexpr int R = D <= 128 ? 2 : 1, other = D <= 64 ? 64 : 32;
  static constexpr int own = warps * R * 16;
  static constexpr std::size_t bytes = tile_bytes<D>(own) + 2 * tile_bytes<D>(other);
  static_assert(bytes <= least_shared_memory);
};

// Over the four lanes that share a row of a 16 x 8 tile, the same bits in each.
__device__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(all_lanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(all_lanes, x, 2));
}
__device__ float quad_sum(float x) {
  x += __shfl_xor_sync(all_lanes, x, 1);
  return x + __shfl_xor_sync(all_lanes, x, 2);
}

// A row's state: `top` the greatest score so far, `sum` this lane's part of the weights' sum.
template <int N, int C>
__device__ void scores_to_weights(float (&scores)[N / 8][4], float (&out)[C / 8][4], float& top, float& sum, int half,
                                  float scale) {
  float highest = top;
#pragma unroll
  for (int n = 0; n < N / 8; ++n) {
    highest = fmaxf(highest, fmaxf(scores[n][half * 2], scores[n][half * 2 + 1]));
  }
  highest = quad_max(highest);
  const float base = highest == -INFINITY ? 0.0f : highest;  // nothing seen so far: all weights are 0
  // Exactly 1 where the maximum stays: a fused difference of two products would not be, and each tile would add to
  // that.
  const float shrink = exp2f((top - base) * scale), shift = base * scale;
  top = highest;
  sum *= shrink;
#pragma unroll
  for (int n = 0; n < N / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float& score = scores[n][half * 2 + e];
      score = exp2f(score * scale - shift);
      sum += score;
    }
  }
#pragma unroll
  for (int n = 0; n < C / 8; ++n) {
    out[n][half * 2] *= shrink;
    out[n][half * 2 + 1] *= shrink;
  }
}

// A block: the queries of a tile, one head. o [T_q, h c], lse [batch, h, queries], q [T_q, h c], k, v [T_k, kv c].
// Values travel while scores are made, the next keys while the values are summed.
template <int D, class O>
__global__ void __launch_bounds__(threads, 2)
    forward(O* o, float* lse, const bf16* q, const bf16* k, const bf16* v, const Geometry g) {
  using Tile = ForwardTile<D>;
  constexpr int R = Tile::R, N = Tile::other;
  auto* const queries = dynamic_shared<bf16>();            // [own, D + 8]
  auto* const keys = queries + Tile::own * stride_of<D>;   // [other, D + 8]
  auto* const values = keys + Tile::other * stride_of<D>;  // [other, D + 8]
  const QueryTile at = query_tile(g, Tile::own);
  const float scale = g.scale * log2_e;  // the weights are powers of 2

  KeyWalk walk(g, at.sequence, at.i0, Tile::own, N);
  const auto start = [&](bf16* tile, const bf16* from) {
    if (walk.there()) {
      start_tile<D, N>(tile, from + at.kv_at + walk.at() * g.kv_stride(), g.kv_stride(), g.keys - walk.at(), g.c);
    }
    end_copies();
  };
  start_tile<D, Tile::own>(queries, q + at.q_at, g.q_stride(), g.queries - at.i0, g.c);
  start(keys, k);
  float top[R][2], sum[R][2];
#pragma unroll
  for (int i = 0; i < R; ++i) {
    top[i][0] = top[i][1] = -INFINITY;
    sum[i][0] = sum[i][1] = 0.0f;
  }
  Sums<R, D> out;
  clear<R, D>(out);

  while (walk.there()) {
    wait_for_copies<0>();
    __syncthreads();  // the keys are there for all, and the last values have been used
    start(values, v);
    Sums<R, N> scores;
    multiply_rows<R, N, D>(scores, queries, keys);
    if (!walk.all_seen()) {
      hide_unseen<R, N>(scores, g, at.sequence, at.i0, walk.at());
    }
#pragma unroll
    for (int i = 0; i < R; ++i) {
      scores_to_weights<N, D>(scores[i], out[i], top[i][0], sum[i][0], 0, scale);
      scores_to_weights<N, D>(scores[i], out[i], top[i][1], sum[i][1], 1, scale);
    }
    Weights<R, N> weights;
    round_weights<R, N>(weights, scores);
    wait_for_copies<0>();
    __syncthreads();  // the values are there for all, and the keys have been used
    walk.next();
    start(keys, k);
    add_product<R, N, D, D>(out, weights, values);
  }
  wait_for_copies<0>();

#pragma unroll
  for (int i = 0; i < R; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = own_row<R>(i, half);
      const float total = quad_sum(sum[i][half]);
      if (at.i0 + row < g.queries) {
        store_row<D>(o + at.q_at + row * g.q_stride(), out[i], half, total == 0.0f ? 0.0f : 1.0f / total, g.c, false);
        if (lane() % 4 == 0) {
          lse[at.head * g.queries + at.i0 + row] = top[i][half] * g.scale + logf(total);
        }
      }
    }
  }
}

}  // namespace
}  // namespace orthant::cuda::attention_mma

namespace orthant::cuda {

bool mma_attention(CudaStream& stream, const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k,
                   const Tensor& v, const SeenKeys& seen, const AttentionShape& shape) {
  if (!mma_attention_fits(q.dtype(), shape)) {
    return false;
  }
  const attention_geometry::Geometry g = attention_geometry::geometry(shape, seen, {o, q, k, v});
  if (!g.vectors) {
    return false;
  }
  with_float_type(o.dtype(), [&](auto out) {
    using O = decltype(out);
    attention_mma::with_channels(g.c, [&](auto channels) {
      constexpr int D = decltype(channels)::value;
      using Tile = attention_mma::ForwardTile<D>;
      launch(attention_mma::forward<D, O>,
             attention_geometry::tiles(g.batch * g.heads, g.queries, Tile::own, attention_mma::threads,
                                       stream.cuda().shared(Tile::bytes)),
             stream.handle(), o.as<O>(), lse.as<float>(), q.as<bf16>(), k.as<bf16>(), v.as<bf16>(), g);
    });
  });
  return true;
}

}  // namespace orthant::cuda
