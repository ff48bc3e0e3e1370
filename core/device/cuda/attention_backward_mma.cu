#include "core/device/cuda/attention_choice.h"
#include "core/device/cuda/attention_mma.h"
#include "core/device/cuda/attention_mma_tile.h"
#include "core/device/cuda/float_type.h"

namespace orthant::cuda::attention_mma {
namespace {

// What both kernels of the backward read. q, d_o [T_q, h c]; k, v [T_k, kv c]; lse, delta [batch, h, queries].
struct BackwardInputs {
  const bf16 *q, *k, *v, *d_o;
  const float *lse, *delta;
};

// The sides of the tiles, the same on every GPU. Two pairs of tiles of other rows: the next is copied while one is
// used.
template <int D, int row_tiles, int others>
struct BackwardTile {
  static constexpr int R = row_tiles, other = others, own = warps * R * 16;
  static constexpr std::size_t bytes = 2 * tile_bytes<D>(own) + 4 * tile_bytes<D>(other);
  static_assert(bytes <= least_shared_memory);
};
template <int D>
using QueriesTile = BackwardTile<D, D <= 64 ? 2 : 1, D <= 128 ? 32 : 16>;
template <int D>
struct KeysTile : BackwardTile<D, 1,
                               D <= 64    ? 64
                               : D <= 128 ? 32
                                          : 16> {
  // A block's channels of dk and dv: the sums of 256 of both are more than there are registers.
  static constexpr int C = D <= 128 ? D : 128, parts = D / C;
};

// What a row's scores, times scale log2(e), are lowered by to give the logarithm of its weights. 0 where there is no
// row, or it sees nothing: its scores are minus infinity.
__device__ float shift_of(const float* lse, std::int64_t i, std::int64_t queries) {
  const float x = i < queries ? lse[i] * log2_e : 0.0f;
  return x == -INFINITY ? 0.0f : x;
}

// A block: the queries of a tile, one head. dq [T_q, h c].
template <int D, class O>
__global__ void __launch_bounds__(threads, 2)
    backward_queries(O* dq, const BackwardInputs in, const Geometry g, bool add) {
  using Tile = QueriesTile<D>;
  constexpr int R = Tile::R, N = Tile::other;
  auto* const queries = dynamic_shared<bf16>();            // [own, D + 8]
  auto* const d_out = queries + Tile::own * stride_of<D>;  // [own, D + 8]
  auto* const others = d_out + Tile::own * stride_of<D>;   // two times keys and values [other, D + 8]
  const QueryTile at = query_tile(g, Tile::own);
  const float scale = g.scale * log2_e;

  KeyWalk walk(g, at.sequence, at.i0, Tile::own, N);
  const auto start = [&](bf16* keys) {
    if (walk.there()) {
      const std::int64_t from = at.kv_at + walk.at() * g.kv_stride(), valid = g.keys - walk.at();
      start_tile<D, N>(keys, in.k + from, g.kv_stride(), valid, g.c);
      start_tile<D, N>(keys + N * stride_of<D>, in.v + from, g.kv_stride(), valid, g.c);
    }
    end_copies();
  };
  start_tile<D, Tile::own>(queries, in.q + at.q_at, g.q_stride(), g.queries - at.i0, g.c);
  start_tile<D, Tile::own>(d_out, in.d_o + at.q_at, g.q_stride(), g.queries - at.i0, g.c);
  start(others);
  float shift[R][2], mean[R][2];
#pragma unroll
  for (int i = 0; i < R; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int64_t query = at.i0 + own_row<R>(i, half);
      shift[i][half] = shift_of(in.lse + at.head * g.queries, query, g.queries);
      mean[i][half] = query < g.queries ? in.delta[at.head * g.queries + query] : 0.0f;
    }
  }
  Sums<R, D> out;
  clear<R, D>(out);

  for (int stage = 0; walk.there(); stage ^= 1) {
    const bf16* const keys = others + stage * 2 * N * stride_of<D>;
    const std::int64_t j0 = walk.at();
    const bool all_seen = walk.all_seen();
    wait_for_copies<0>();
    __syncthreads();  // the keys and values are there for all, and those of before have been used
    walk.next();
    start(others + (stage ^ 1) * 2 * N * stride_of<D>);
    Sums<R, N> scores, d_weights;
    multiply_rows<R, N, D>(scores, queries, keys);
    if (!all_seen) {
      hide_unseen<R, N>(scores, g, at.sequence, at.i0, j0);
    }
    multiply_rows<R, N, D>(d_weights, d_out, keys + N * stride_of<D>);
#pragma unroll
    for (int i = 0; i < R; ++i) {
#pragma unroll
      for (int n = 0; n < N / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float weight = exp2f(scores[i][n][e] * scale - shift[i][e / 2]);
          scores[i][n][e] = weight * (d_weights[i][n][e] - mean[i][e / 2]);
        }
      }
    }
    Weights<R, N> d_scores;
    round_weights<R, N>(d_scores, scores);
    add_product<R, N, D, D>(out, d_scores, keys);
  }
  wait_for_copies<0>();

#pragma unroll
  for (int i = 0; i < R; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = own_row<R>(i, half);
      if (at.i0 + row < g.queries) {
        store_row<D>(dq + at.q_at + row * g.q_stride(), out[i], half, g.scale, g.c, add);
      }
    }
  }
}

// Of the tiles of queries that see a key of a tile, one after the other: those of one head after those of another. All
// lanes of the warp call.
class QueryWalk {
 public:
  // keys: from j0 on, in the order of `sequence`; heads: from h on.
  __device__ QueryWalk(const Geometry& g, std::int64_t sequence, std::int64_t j0, int keys, std::int64_t h,
                       std::int64_t heads, int tile)
      : g_(g),
        sequence_(sequence),
        places_(places_of_tile(g, j0, keys)),
        whole_(j0 + keys <= g.keys),
        begin_(causal_in_order(g) ? static_cast<int>(j0 / tile * tile) : 0),
        end_(static_cast<int>(h + heads)),
        tile_(tile),
        h_(static_cast<int>(h)),
        at_(begin_) {
    find();
  }
  __device__ bool there() const { return h_ < end_; }
  // The first query of the tile in its sequence, and the head.
  __device__ std::int64_t at() const { return at_; }
  __device__ std::int64_t head() const { return h_; }
  __device__ bool all_seen() const { return whole_ && every_.low <= places_.low && places_.high <= every_.high; }
  __device__ void next() {
    at_ += tile_;
    find();
  }

 private:
  __device__ void find() {
    for (;; at_ += tile_) {
      if (at_ >= g_.queries) {
        at_ = begin_;
        ++h_;
      }
      if (!there()) {
        return;
      }
      if (meet(sight_of_tile(g_, sequence_, at_, tile_), places_)) {
        every_ = common_sight_of_tile(g_, sequence_, at_, tile_);
        return;
      }
    }
  }

  const Geometry& g_;
  const std::int64_t sequence_;
  const Sight places_;
  const bool whole_;
  const int begin_, end_;  // 32 bits, as places have: registers are few
  const int tile_;
  int h_, at_;
  Sight every_{};
};

// As hide_unseen, where the own rows are keys.
template <int R, int N>
__device__ void hide_unseeing(Sums<R, N>& scores, const Geometry& g, std::int64_t sequence, std::int64_t i0,
                              std::int64_t j0) {
  std::int32_t place[R][2];
#pragma unroll
  for (int i = 0; i < R; ++i) {
    place[i][0] = place_of(g, j0 + own_row<R>(i, 0));
    place[i][1] = place_of(g, j0 + own_row<R>(i, 1));
  }
#pragma unroll
  for (int n = 0; n < N / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const Sight sight = sight_of(g, sequence, i0 + column_of(n) + e);
#pragma unroll
      for (int i = 0; i < R; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& score = scores[i][n][half * 2 + e];
          score = sees(sight, place[i][half]) ? score : -INFINITY;
        }
      }
    }
  }
}

// A block: the keys of a tile, one KV head, with all its query heads; C of the channels of dk, dv [T_k, kv c].
template <int D, class O>
__global__ void __launch_bounds__(threads, 2)
    backward_keys(O* dk, O* dv, const BackwardInputs in, const Geometry g, bool add) {
  using Tile = KeysTile<D>;
  constexpr int R = Tile::R, N = Tile::other, C = Tile::C;
  auto* const keys = dynamic_shared<bf16>();               // [own, D + 8]
  auto* const values = keys + Tile::own * stride_of<D>;    // [own, D + 8]
  auto* const others = values + Tile::own * stride_of<D>;  // two times queries and d_out [other, D + 8]
  const int channel = static_cast<int>(blockIdx.x % Tile::parts) * C;
  const std::int64_t block = blockIdx.x / Tile::parts, heads = g.batch * g.kv_heads, group = g.heads / g.kv_heads;
  // The first keys of a causal sequence are seen by the most queries: they come first.
  const std::int64_t head = block % heads, j0 = block / heads * Tile::own;
  const std::int64_t sequence = head / g.kv_heads, kv = head % g.kv_heads;
  const std::int64_t kv_at = (sequence * g.keys + j0) * g.kv_stride() + kv * g.c;
  const float scale = g.scale * log2_e;

  QueryWalk walk(g, sequence, j0, Tile::own, kv * group, group, N);
  const auto start = [&](bf16* queries) {
    if (walk.there()) {
      const std::int64_t from = (sequence * g.queries + walk.at()) * g.q_stride() + walk.head() * g.c;
      const std::int64_t valid = g.queries - walk.at();
      start_tile<D, N>(queries, in.q + from, g.q_stride(), valid, g.c);
      start_tile<D, N>(queries + N * stride_of<D>, in.d_o + from, g.q_stride(), valid, g.c);
    }
    end_copies();
  };
  start_tile<D, Tile::own>(keys, in.k + kv_at, g.kv_stride(), g.keys - j0, g.c);
  start_tile<D, Tile::own>(values, in.v + kv_at, g.kv_stride(), g.keys - j0, g.c);
  start(others);
  Sums<R, C> d_keys, d_values;
  clear<R, C>(d_keys);
  clear<R, C>(d_values);

  for (int stage = 0; walk.there(); stage ^= 1) {
    const bf16* const queries = others + stage * 2 * N * stride_of<D>;
    const std::int64_t i0 = walk.at(), sums_at = (sequence * g.heads + walk.head()) * g.queries;
    const bool all_seen = walk.all_seen();
    wait_for_copies<0>();
    __syncthreads();  // the queries and d_o are there for all, and those of before have been used
    walk.next();
    start(others + (stage ^ 1) * 2 * N * stride_of<D>);
    Sums<R, N> scores, d_scores;
    multiply_rows<R, N, D>(scores, keys, queries);
    if (!all_seen) {
      hide_unseeing<R, N>(scores, g, sequence, i0, j0);
    }
#pragma unroll
    for (int n = 0; n < N / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float shift = shift_of(in.lse + sums_at, i0 + column_of(n) + e % 2, g.queries);
#pragma unroll
        for (int i = 0; i < R; ++i) {
          scores[i][n][e] = exp2f(scores[i][n][e] * scale - shift);
        }
      }
    }
    multiply_rows<R, N, D>(d_scores, values, queries + N * stride_of<D>);
#pragma unroll
    for (int n = 0; n < N / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const std::int64_t query = i0 + column_of(n) + e % 2;
        const float mean = query < g.queries ? in.delta[sums_at + query] : 0.0f;
#pragma unroll
        for (int i = 0; i < R; ++i) {
          d_scores[i][n][e] = scores[i][n][e] * (d_scores[i][n][e] - mean);
        }
      }
    }
    Weights<R, N> weights;
    round_weights<R, N>(weights, scores);
    add_product<R, N, C, D>(d_values, weights, queries + N * stride_of<D>, channel);
    round_weights<R, N>(weights, d_scores);
    add_product<R, N, C, D>(d_keys, weights, queries, channel);
  }
  wait_for_copies<0>();

#pragma unroll
  for (int i = 0; i < R; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = own_row<R>(i, half);
      if (j0 + row < g.keys) {
        const std::int64_t to = kv_at + row * g.kv_stride() + channel;
        store_row<C>(dk + to, d_keys[i], half, g.scale, g.c - channel, add);
        store_row<C>(dv + to, d_values[i], half, 1.0f, g.c - channel, add);
      }
    }
  }
}

}  // namespace
}  // namespace orthant::cuda::attention_mma

namespace orthant::cuda {

bool mma_attention_backward(CudaStream& stream, const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& d_o,
                            const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o, const Tensor& lse,
                            const SeenKeys& seen, const AttentionShape& shape, bool add) {
  if (!mma_attention_fits(q.dtype(), shape)) {
    return false;
  }
  const attention_geometry::Geometry g = attention_geometry::geometry(shape, seen, {dq, dk, dv, d_o, q, k, v});
  if (!g.vectors) {
    return false;
  }
  auto* const delta = static_cast<float*>(stream.scratch(0, lse.bytes()));
  attention_delta(stream, delta, d_o, o, shape);
  const attention_mma::BackwardInputs in{q.as<bf16>(),   k.as<bf16>(),    v.as<bf16>(),
                                         d_o.as<bf16>(), lse.as<float>(), delta};
  with_float_type(dq.dtype(), [&](auto out) {
    using O = decltype(out);
    attention_mma::with_channels(g.c, [&](auto channels) {
      constexpr int D = decltype(channels)::value;
      using Queries = attention_mma::QueriesTile<D>;
      using Keys = attention_mma::KeysTile<D>;
      launch(attention_mma::backward_queries<D, O>,
             attention_geometry::tiles(g.batch * g.heads, g.queries, Queries::own, attention_mma::threads,
                                       stream.cuda().shared(Queries::bytes)),
             stream.handle(), dq.as<O>(), in, g, add);
      launch(attention_mma::backward_keys<D, O>,
             attention_geometry::tiles(g.batch * g.kv_heads * Keys::parts, g.keys, Keys::own, attention_mma::threads,
                                       stream.cuda().shared(Keys::bytes)),
             stream.handle(), dk.as<O>(), dv.as<O>(), in, g, add);
    });
  });
  return true;
}

}  // namespace orthant::cuda
