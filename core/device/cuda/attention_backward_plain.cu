#include "core/device/cuda/attention_plain.h"

#include "core/device/cuda/attention_tile.h"
#include "core/device/cuda/float_type.h"

namespace orthant::cuda {
namespace {

using namespace attention_tile;

// The sides of the backward's tiles: 16 R own rows, 16 C others. A thread adds one row after the other whatever the
// sides are, so no bit depends on them. Of small tiles, and of those of 256 channels, a multiprocessor has room for one
// block, with all its registers.
template <int D, bool small>
struct BackwardTile {
  static constexpr int R = D <= 64 ? 4 : (D <= 128 ? 4 : 2) / (small ? 2 : 1);
  static constexpr int C = D <= 64 ? 4 : D <= 128 || !small ? 2 : 1;
  static constexpr int own = side * R, other = side * C;
  static constexpr std::size_t bytes =
      2 * tile_bytes<D>(own) + 2 * tile_bytes<D>(other) + sizeof(float) * own * weight_stride<C>;
  static_assert(!small || bytes <= least_shared_memory);
};

// What both kernels of the backward read. q, d_o [T_q, h c]; k, v [T_k, kv c]; lse, delta [batch, h, queries].
template <class T>
struct Saved {
  const T *q, *k, *v, *d_o;
  const float *lse, *delta;
};

// A block: the queries of a tile, one head. dq [T_q, h c].
template <int D, bool small, class T, class O>
__global__ void __launch_bounds__(threads, small || D == 256 ? 1 : 0)
    backward_queries(O* dq, const Saved<T> s, const Geometry g, bool add) {
  using Tile = BackwardTile<D, small>;
  constexpr int R = Tile::R, C = Tile::C;
  auto* const queries = dynamic_shared<float>();              // [own, D + 4]
  auto* const d_out = queries + Tile::own * stride_of<D>;     // [own, D + 4]
  auto* const keys = d_out + Tile::own * stride_of<D>;        // [other, D + 4]
  auto* const values = keys + Tile::other * stride_of<D>;     // [other, D + 4]
  auto* const weights = values + Tile::other * stride_of<D>;  // [own, other + 4]
  const auto [head, sequence, i0, q_at, kv_at] = query_tile(g, Tile::own);
  const int i_own = own() * R;

  load_tile<D>(queries, s.q + q_at, g.q_stride(), g.queries - i0, Tile::own, g, g.scale);
  load_tile<D>(d_out, s.d_o + q_at, g.q_stride(), g.queries - i0, Tile::own, g, 1.0f);
  Sight sight[R];
  float shift[R], mean[R];
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const std::int64_t query = i0 + i_own + i;
    sight[i] = sight_of(g, sequence, query);
    shift[i] = query < g.queries ? s.lse[head * g.queries + query] : 0.0f;
    mean[i] = query < g.queries ? s.delta[head * g.queries + query] : 0.0f;
  }
  Sums<R, D> out;
  clear<R, D>(out);

  const Sight all = sight_of_tile(g, sequence, i0, Tile::own);
  const auto [begin, end] = keys_of(g, all, Tile::other);
  for (std::int64_t j0 = begin; j0 < end; j0 += Tile::other) {
    if (!meet(all, places_of_tile(g, j0, Tile::other))) {
      continue;
    }
    const std::int64_t at = kv_at + j0 * g.kv_stride(), valid = g.keys - j0;
    __syncthreads();  // the last keys have been used
    load_tile<D>(keys, s.k + at, g.kv_stride(), valid, Tile::other, g, 1.0f);
    load_tile<D>(values, s.v + at, g.kv_stride(), valid, Tile::other, g, 1.0f);
    __syncthreads();
    float score[R][C], d_weight[R][C];
    multiply_rows<R, C, D>(score, queries, keys, g.c);
    multiply_rows<R, C, D>(d_weight, d_out, values, g.c);
#pragma unroll
    for (int j = 0; j < C; ++j) {
      const std::int32_t place = place_of(g, j0 + other() + side * j);
#pragma unroll
      for (int i = 0; i < R; ++i) {
        score[i][j] = sees(sight[i], place) ? expf(score[i][j] - shift[i]) * (d_weight[i][j] - mean[i]) : 0.0f;
      }
    }
    store_weights(weights, score);
    __syncwarp();
    add_product<R, C, D>(out, weights, keys);
  }
#pragma unroll
  for (int i = 0; i < R; ++i) {
    if (i0 + i_own + i < g.queries) {
      store_row<D>(dq + q_at + (i_own + i) * g.q_stride(), out[i], g.scale, g, add);
    }
  }
}

// A block: the keys of a tile, one KV head, with all its query heads. dk, dv [T_k, kv c].
template <int D, bool small, class T, class O>
__global__ void __launch_bounds__(threads, small || D == 256 ? 1 : 0)
    backward_keys(O* dk, O* dv, const Saved<T> s, const Geometry g, bool add) {
  using Tile = BackwardTile<D, small>;
  constexpr int R = Tile::R, C = Tile::C;
  auto* const keys = dynamic_shared<float>();                // [own, D + 4]
  auto* const values = keys + Tile::own * stride_of<D>;      // [own, D + 4]
  auto* const queries = values + Tile::own * stride_of<D>;   // [other, D + 4]
  auto* const d_out = queries + Tile::other * stride_of<D>;  // [other, D + 4]
  auto* const weights = d_out + Tile::other * stride_of<D>;  // [own, other + 4]
  const std::int64_t heads = g.batch * g.kv_heads, group = g.heads / g.kv_heads;
  // The first keys of a causal sequence are seen by the most queries: they come first.
  const std::int64_t head = blockIdx.x % heads, j0 = blockIdx.x / heads * Tile::own;
  const std::int64_t sequence = head / g.kv_heads, kv = head % g.kv_heads;
  const std::int64_t kv_at = (sequence * g.keys + j0) * g.kv_stride() + kv * g.c;
  const int j_own = own() * R;

  load_tile<D>(keys, s.k + kv_at, g.kv_stride(), g.keys - j0, Tile::own, g, 1.0f);
  load_tile<D>(values, s.v + kv_at, g.kv_stride(), g.keys - j0, Tile::own, g, 1.0f);
  std::int32_t place[R];
#pragma unroll
  for (int i = 0; i < R; ++i) {
    place[i] = place_of(g, j0 + j_own + i);
  }
  Sums<R, D> d_keys, d_values;
  clear<R, D>(d_keys);
  clear<R, D>(d_values);

  const Sight all = places_of_tile(g, j0, Tile::own);
  const bool in_order = causal_in_order(g);
  for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
    const std::int64_t sums_at = (sequence * g.heads + h) * g.queries;
    for (std::int64_t i0 = in_order ? j0 / Tile::other * Tile::other : 0; i0 < g.queries; i0 += Tile::other) {
      if (!meet(sight_of_tile(g, sequence, i0, Tile::other), all)) {
        continue;
      }
      const std::int64_t at = (sequence * g.queries + i0) * g.q_stride() + h * g.c, valid = g.queries - i0;
      __syncthreads();  // the last queries have been used
      load_tile<D>(queries, s.q + at, g.q_stride(), valid, Tile::other, g, g.scale);
      load_tile<D>(d_out, s.d_o + at, g.q_stride(), valid, Tile::other, g, 1.0f);
      __syncthreads();
      float weight[R][C], d_score[R][C];
      multiply_rows<R, C, D>(weight, keys, queries, g.c);
      multiply_rows<R, C, D>(d_score, values, d_out, g.c);
#pragma unroll
      for (int j = 0; j < C; ++j) {
        const std::int64_t query = i0 + other() + side * j;
        const Sight sight = sight_of(g, sequence, query);
        const float shift = query < g.queries ? s.lse[sums_at + query] : 0.0f;
        const float mean = query < g.queries ? s.delta[sums_at + query] : 0.0f;
#pragma unroll
        for (int i = 0; i < R; ++i) {
          const bool seen = sees(sight, place[i]);
          weight[i][j] = seen ? expf(weight[i][j] - shift) : 0.0f;
          d_score[i][j] = seen ? weight[i][j] * (d_score[i][j] - mean) : 0.0f;
        }
      }
      store_weights(weights, weight);
      __syncwarp();
      add_product<R, C, D>(d_values, weights, d_out);
      __syncwarp();  // the weights have been used
      store_weights(weights, d_score);
      __syncwarp();
      add_product<R, C, D>(d_keys, weights, queries);
    }
  }
#pragma unroll
  for (int i = 0; i < R; ++i) {
    if (j0 + j_own + i < g.keys) {
      store_row<D>(dk + kv_at + (j_own + i) * g.kv_stride(), d_keys[i], 1.0f, g, add);
      store_row<D>(dv + kv_at + (j_own + i) * g.kv_stride(), d_values[i], 1.0f, g, add);
    }
  }
}

}  // namespace

void plain_attention_backward(CudaStream& stream, const Tensor& dq, const Tensor& dk, const Tensor& dv,
                              const Tensor& d_o, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                              const Tensor& lse, const SeenKeys& seen, const AttentionShape& shape, bool add) {
  const Geometry g = geometry(shape, seen, {dq, dk, dv, d_o, q, k, v});
  auto* const delta = static_cast<float*>(stream.scratch(0, lse.bytes()));
  attention_delta(stream, delta, d_o, o, shape);
  with_types(q.dtype(), dq.dtype(), [&](auto in, auto out) {
    using T = decltype(in);
    using O = decltype(out);
    const Saved<T> saved{q.as<T>(), k.as<T>(), v.as<T>(), d_o.as<T>(), lse.as<float>(), delta};
    with_channels(g.c, [&](auto channels) {
      constexpr int D = decltype(channels)::value;
      with_tile_size<BackwardTile<D, false>::bytes>(stream.cuda(), [&](auto is_small) {
        constexpr bool small = decltype(is_small)::value;
        using Tile = BackwardTile<D, small>;
        launch(backward_queries<D, small, T, O>,
               tiles(g.batch * g.heads, g.queries, Tile::own, threads, stream.cuda().shared(Tile::bytes)),
               stream.handle(), dq.as<O>(), saved, g, add);
        launch(backward_keys<D, small, T, O>,
               tiles(g.batch * g.kv_heads, g.keys, Tile::own, threads, stream.cuda().shared(Tile::bytes)),
               stream.handle(), dk.as<O>(), dv.as<O>(), saved, g, add);
      });
    });
  });
}

}  // namespace orthant::cuda
