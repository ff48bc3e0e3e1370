#include "core/device/cuda/attention_plain.h"

#include "core/device/cuda/attention_tile.h"
#include "core/device/cuda/float_type.h"

namespace orthant::cuda {
namespace {

using namespace attention_tile;

// The sides of the forward's tiles: 16 R queries by 64 keys. Only the queries are fewer in a small tile: a row's
// running maximum meets the same keys at a time, so no bit depends on which GPU it is.
template <int D, bool small>
struct ForwardTile {
  static constexpr int R = small && D == 256 ? 1 : 4, C = 4;
  static constexpr int own = side * R, other = side * C;
  static constexpr std::size_t bytes =
      tile_bytes<D>(own) + tile_bytes<D>(other) + sizeof(float) * own * weight_stride<C>;
  static_assert(!small || bytes <= least_shared_memory);
};

// The greatest over the 16 threads of a row.
__device__ float row_max(float x) {
#pragma unroll
  for (int offset = side / 2; offset > 0; offset /= 2) {
    x = fmaxf(x, __shfl_xor_sync(all_lanes, x, offset));
  }
  return x;
}
__device__ float row_sum(float x) {
#pragma unroll
  for (int offset = side / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(all_lanes, x, offset);
  }
  return x;
}

// A block: the queries of a tile, one head. o [T_q, h c], lse [batch, h, queries], q [T_q, h c], k, v [T_k, kv c].
template <int D, bool small, class T, class O>
__global__ void __launch_bounds__(threads, D <= 64 ? 2 : 1)
    forward(O* o, float* lse, const T* q, const T* k, const T* v, const Geometry g) {
  using Tile = ForwardTile<D, small>;
  constexpr int R = Tile::R, C = Tile::C;
  auto* const queries = dynamic_shared<float>();              // [own, D + 4]
  auto* const others = queries + Tile::own * stride_of<D>;    // [other, D + 4], keys and then values
  auto* const weights = others + Tile::other * stride_of<D>;  // [own, other + 4]
  const auto [head, sequence, i0, q_at, kv_at] = query_tile(g, Tile::own);
  const int i_own = own() * R;

  load_tile<D>(queries, q + q_at, g.q_stride(), g.queries - i0, Tile::own, g, g.scale);
  Sight sight[R];
  float top[R], sum[R];  // sum: this thread's part
#pragma unroll
  for (int i = 0; i < R; ++i) {
    sight[i] = sight_of(g, sequence, i0 + i_own + i);
    top[i] = -INFINITY;
    sum[i] = 0.0f;
  }
  Sums<R, D> out;
  clear<R, D>(out);

  const Sight all = sight_of_tile(g, sequence, i0, Tile::own);
  const auto [begin, end] = keys_of(g, all, Tile::other);
  for (std::int64_t j0 = begin; j0 < end; j0 += Tile::other) {
    if (!meet(all, places_of_tile(g, j0, Tile::other))) {
      continue;
    }
    __syncthreads();  // the last values have been used
    load_tile<D>(others, k + kv_at + j0 * g.kv_stride(), g.kv_stride(), g.keys - j0, Tile::other, g, 1.0f);
    __syncthreads();
    float score[R][C];
    multiply_rows<R, C, D>(score, queries, others, g.c);
#pragma unroll
    for (int j = 0; j < C; ++j) {
      const std::int32_t place = place_of(g, j0 + other() + side * j);
#pragma unroll
      for (int i = 0; i < R; ++i) {
        score[i][j] = sees(sight[i], place) ? score[i][j] : -INFINITY;
      }
    }
#pragma unroll
    for (int i = 0; i < R; ++i) {
      float highest = top[i];
#pragma unroll
      for (int j = 0; j < C; ++j) {
        highest = fmaxf(highest, score[i][j]);
      }
      highest = row_max(highest);
      const float shift = highest == -INFINITY ? 0.0f : highest;  // nothing seen so far: all weights are 0
      const float shrink = expf(top[i] - shift);
      top[i] = highest;
      sum[i] *= shrink;
#pragma unroll
      for (int j = 0; j < C; ++j) {
        score[i][j] = expf(score[i][j] - shift);
        sum[i] += score[i][j];
      }
#pragma unroll
      for (int m = 0; m < D / 64; ++m) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          out[i][m][e] *= shrink;
        }
      }
    }
    store_weights(weights, score);
    __syncthreads();  // the keys have been used
    load_tile<D>(others, v + kv_at + j0 * g.kv_stride(), g.kv_stride(), g.keys - j0, Tile::other, g, 1.0f);
    __syncthreads();
    add_product<R, C, D>(out, weights, others);
  }
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const float total = row_sum(sum[i]);
    if (i0 + i_own + i < g.queries) {
      store_row<D>(o + q_at + (i_own + i) * g.q_stride(), out[i], total == 0.0f ? 0.0f : 1.0f / total, g, false);
      if (other() == 0) {
        lse[head * g.queries + i0 + i_own + i] = top[i] + logf(total);
      }
    }
  }
}

}  // namespace

void plain_attention(CudaStream& stream, const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k,
                     const Tensor& v, const SeenKeys& seen, const AttentionShape& shape) {
  const Geometry g = geometry(shape, seen, {o, q, k, v});
  with_types(q.dtype(), o.dtype(), [&](auto in, auto out) {
    using T = decltype(in);
    using O = decltype(out);
    with_channels(g.c, [&](auto channels) {
      constexpr int D = decltype(channels)::value;
      with_tile_size<ForwardTile<D, false>::bytes>(stream.cuda(), [&](auto is_small) {
        constexpr bool small = decltype(is_small)::value;
        using Tile = ForwardTile<D, small>;
        launch(forward<D, small, T, O>,
               tiles(g.batch * g.heads, g.queries, Tile::own, threads, stream.cuda().shared(Tile::bytes)),
               stream.handle(), o.as<O>(), lse.as<float>(), q.as<T>(), k.as<T>(), v.as<T>(), g);
      });
    });
  });
}

}  // namespace orthant::cuda
