// Attention by tiles of 64 queries by 64 keys, never a whole row of scores: forward with a running maximum (Milakov and
// Gimelshein, "Online normalizer calculation for softmax"), backward from the saved log-sum-exp (Dao et al.,
// "FlashAttention"). A task is one KV head of one sequence with all its query heads: dk and dv are summed by one
// thread in a fixed order.
//
// The keys of a task are taken in ascending order of their place in the sequence. What a query sees is then a range of
// them, whatever order they lie in, and a tile of keys that no query of a tile sees costs nothing.
#pragma once

#include <orthant/ops.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/device/cpu/attention_view.h"
#include "core/device/cpu/bf16.h"
#include "core/device/cpu/parallel.h"
#include "core/device/cpu/scratch.h"
#include "core/device/cpu/tile.h"
#include "core/device/cpu/vector_math.h"

namespace orthant::attention_tiles {

// fp32 working memory of one task, carved from one buffer. What is taken begins a few cache lines off from one another:
// matrices of sizes that are powers of two would otherwise meet in the same few places of the first-level cache.
class Arena {
 public:
  void reserve(std::int64_t floats) {
    const std::int64_t all = floats + most_parts * apart;
    next_ = static_cast<float*>(buffer_.get(static_cast<std::size_t>(all) * sizeof(float)));
  }
  // At most most_parts times.
  float* take(std::int64_t floats) {
    float* taken = next_;
    next_ += floats + apart;
    return taken;
  }

 private:
  static constexpr std::int64_t most_parts = 16, apart = 5 * 16;
  ScratchBuffer buffer_;
  float* next_ = nullptr;
};

// Sizes shared by all tiles of a call.
struct Geometry {
  std::int64_t queries, keys, c, c_padded, keys_padded, q_stride, kv_stride;
  float scale;
  explicit Geometry(const AttentionShape& shape)
      : queries(shape.positions),
        keys(shape.kv_positions == 0 ? shape.positions : shape.kv_positions),
        c(shape.head_dim),
        c_padded(tile::padded(shape.head_dim, tile::lanes)),
        keys_padded(tile::padded(keys, side)),
        q_stride(shape.heads * shape.head_dim),
        kv_stride(shape.kv_heads * shape.head_dim),
        scale(1.0f / std::sqrt(static_cast<float>(shape.head_dim))) {}
  std::int64_t head_floats() const { return keys_padded * c_padded; }
};

// `rows` rows of a head (row order[i] where `order` is given), times `scale`, to [padded_rows, c_padded], zeros around.
template <class T>
void load_rows(float* to, const T* from, const std::int32_t* order, std::int64_t stride, std::int64_t rows,
               std::int64_t padded_rows, const Geometry& g, float scale) {
  for (std::int64_t i = 0; i < padded_rows; ++i, to += g.c_padded) {
    const std::int64_t valid = i < rows ? g.c : 0, at = i < rows ? i : 0;
    const T* row = from + (order == nullptr ? at : order[at]) * stride;
    // A head's rows lie too far apart for the processor to fetch ahead by itself.
    if (const std::int64_t next = i + 8; next < rows) {
      const T* const later = from + (order == nullptr ? next : order[next]) * stride;
      for (std::int64_t e = 0; e < g.c; e += 64 / static_cast<std::int64_t>(sizeof(T))) {
        __builtin_prefetch(later + e);
      }
    }
#pragma omp simd
    for (std::int64_t e = 0; e < valid; ++e) {
      to[e] = scale * to_float(row[e]);
    }
    std::fill(to + valid, to + g.c_padded, 0.0f);
  }
}

template <class T>
void store_rows(T* to, std::int64_t stride, const float* from, std::int64_t rows, const Geometry& g, float scale) {
  for (std::int64_t i = 0; i < rows; ++i) {
#pragma omp simd
    for (std::int64_t e = 0; e < g.c; ++e) {
      to[i * stride + e] = from_float<T>(scale * from[i * g.c_padded + e]);
    }
  }
}

// store_rows, but +=, to row order[i] where `order` is given.
inline void add_rows(float* to, const std::int32_t* order, std::int64_t stride, const float* from, std::int64_t rows,
                     const Geometry& g, float scale) {
  for (std::int64_t i = 0; i < rows; ++i) {
    float* row = to + (order == nullptr ? i : order[i]) * stride;
#pragma omp simd
    for (std::int64_t e = 0; e < g.c; ++e) {
      row[e] += scale * from[i * g.c_padded + e];
    }
  }
}

// One tile of keys [side, c_padded] as [c, side].
inline void transpose_tile(float* to, const float* from, const Geometry& g) {
  for (std::int64_t e = 0; e < g.c; e += tile::lanes) {
    for (std::int64_t j = 0; j < side; j += tile::lanes) {
      tile::transpose(to + e * side + j, side, from + j * g.c_padded + e, g.c_padded, std::min(tile::lanes, g.c - e));
    }
  }
}

// A whole head of keys or values as one [c, side] block per tile of keys; `rows` holds a tile as it is loaded.
template <class T>
void load_transposed(float* to, float* rows, const T* from, const std::int32_t* order, const Geometry& g) {
  for (std::int64_t j = 0; j < g.keys; j += side) {
    load_rows(rows, order == nullptr ? from + j * g.kv_stride : from, order == nullptr ? nullptr : order + j,
              g.kv_stride, std::min(side, g.keys - j), side, g, 1.0f);
    transpose_tile(to + j * g.c, rows, g);
  }
}

// Sets what lies outside `seen`: in the vectors that it lies in to `beside`, in the rest of the row to zero. Returns
// those vectors: a vector that is partly seen costs less than its elements one by one.
inline KeyRange set_unseen(float* row, std::int64_t columns, const KeyRange& seen, float beside) {
  if (seen.begin == 0 && seen.end == columns) {
    return seen;
  }
  const KeyRange whole{seen.begin / tile::lanes * tile::lanes, tile::padded(seen.end, tile::lanes)};
  std::fill(row, row + whole.begin, 0.0f);
  std::fill(row + whole.begin, row + seen.begin, beside);
  std::fill(row + seen.end, row + whole.end, beside);
  std::fill(row + whole.end, row + columns, 0.0f);
  return whole;
}

// Online softmax of one row of scores, of which some keys are seen: scores become weights, zero elsewhere; top, sum (by
// lanes) and the row of o so far are brought up to date.
inline void softmax_row(float* score, std::int64_t columns, const KeyRange& seen, float* top, tile::Vector* sum,
                        float* o, std::int64_t width) {
  if (seen.begin >= seen.end) {
    std::fill(score, score + columns, 0.0f);
    return;
  }
  const KeyRange whole = set_unseen(score, columns, seen, -std::numeric_limits<float>::infinity());
  tile::Vector highest = *top - tile::Vector{};  // NaN is not higher
  for (std::int64_t j = whole.begin; j < whole.end; j += tile::lanes) {
    const tile::Vector x = tile::load(score + j);
    highest = x > highest ? x : highest;
  }
  highest = tile::greatest_of(highest);
  const float now = highest[0];
  if (now != *top) {
    const float shrink = fast_exp(*top - now);
    *sum *= shrink;
    *top = now;
#pragma omp simd
    for (std::int64_t e = 0; e < width; ++e) {
      o[e] *= shrink;
    }
  }
#pragma omp simd
  for (std::int64_t j = whole.begin; j < whole.end; ++j) {
    score[j] = fast_exp(score[j] - now);
  }
  for (std::int64_t j = whole.begin; j < whole.end; j += tile::lanes) {
    *sum += tile::load(score + j);
  }
}

// One row of the backward pass: scores p become weights, their gradients' first part ds the gradients of scores.
inline void score_gradients(float* p, float* ds, std::int64_t columns, const KeyRange& seen, float lse, float mean) {
  if (seen.begin >= seen.end) {
    std::fill(p, p + columns, 0.0f);
    std::fill(ds, ds + columns, 0.0f);
    return;
  }
  set_unseen(ds, columns, seen, 0.0f);
  const KeyRange whole = set_unseen(p, columns, seen, -std::numeric_limits<float>::infinity());
#pragma omp simd
  for (std::int64_t j = whole.begin; j < whole.end; ++j) {
    const float weight = fast_exp(p[j] - lse);
    p[j] = weight;
    ds[j] = weight * (ds[j] - mean);
  }
}

// One tile of queries of one head (or of heads that share keys), and what it makes of tiles of keys. A query's result
// does not depend on which others are in the tile.
struct QueryTile {
  float *queries, *scores, *out;  // [side, c_padded], [side, side], [side, c_padded]
  float top[side];
  tile::Vector sum[side];  // by lanes

  static std::int64_t floats(const Geometry& g) { return 2 * side * g.c_padded + side * side; }
  void take(Arena& arena, const Geometry& g) {
    out = arena.take(side * g.c_padded);
    queries = arena.take(side * g.c_padded);
    scores = arena.take(side * side);
  }

  // The first `rows` queries, which have been loaded; query r sees what visible.range[i0 + r] says. block(j0) gives
  // keys [j0, j0 + side) as a pair of pointers: keys_t [c, side] and values [side, c_padded], of finite numbers.
  template <class Block>
  void run(std::int64_t i0, std::int64_t rows, const Visible& visible, const Geometry& g, Block&& block) {
    const std::int64_t tile_rows = tile::padded(rows, tile::row_step);
    std::fill(out, out + tile_rows * g.c_padded, 0.0f);
    std::fill(top, top + side, -std::numeric_limits<float>::infinity());
    std::fill(sum, sum + side, tile::Vector{});
    const KeyRange span = visible.span(i0, rows);
    for (std::int64_t j0 = span.begin; j0 < span.end; j0 += side) {
      if (!visible.meets(i0, rows, j0)) {
        continue;
      }
      const auto [keys_t, values] = block(j0);
      const std::int64_t keys = std::min(side, span.end - j0), columns = tile::padded(keys, tile::lanes);
      const TileView seen(visible, i0, rows, j0, keys);
      for (std::int64_t r0 = 0; r0 < rows; r0 += TileView::group) {
        const std::int64_t count = std::min(TileView::group, tile_rows - r0), of_group = seen.keys_of(r0);
        float* const score = scores + r0 * side;
        tile::multiply(count, tile::padded(of_group, tile::lanes), g.c, queries + r0 * g.c_padded, g.c_padded, 1,
                       keys_t, side, score, side, false);
        for (std::int64_t r = r0; r < std::min(rows, r0 + TileView::group); ++r) {
          softmax_row(scores + r * side, columns, seen[r], top + r, sum + r, out + r * g.c_padded, g.c_padded);
        }
        tile::multiply(count, g.c_padded, of_group, score, side, 1, values, g.c_padded, out + r0 * g.c_padded,
                       g.c_padded, true);
      }
    }
  }
  float whole_sum(std::int64_t r) const { return tile::sum_of(sum[r])[0]; }
  float share(std::int64_t r) const {
    const float whole = whole_sum(r);
    return whole == 0.0f ? 0.0f : 1.0f / whole;
  }
  float log_sum(std::int64_t r) const { return top[r] + std::log(whole_sum(r)); }
};

struct Forward {
  Geometry g;
  Arena arena;
  QueryTile tile;
  float *keys_t, *values;

  explicit Forward(const AttentionShape& shape) : g(shape) {
    arena.reserve(2 * g.head_floats() + g.keys_padded * g.c + QueryTile::floats(g));
    values = arena.take(g.head_floats());
    tile.take(arena, g);
    keys_t = arena.take(g.keys_padded * g.c);
  }

  template <class T>
  void load_head(const T* k, const T* v, const Visible& visible) {
    load_transposed(keys_t, values, k, visible.order, g);
    load_rows(values, v, visible.order, g.kv_stride, g.keys, g.keys_padded, g, 1.0f);
  }

  // Queries [i0, i0 + rows) of one head. A query that sees nothing gets 0 and -infinity.
  template <class O, class T>
  void run(O* o, float* lse, const T* q, std::int64_t i0, std::int64_t rows, const Visible& visible) {
    load_rows(tile.queries, q + i0 * g.q_stride, nullptr, g.q_stride, rows, tile::padded(rows, tile::row_step), g,
              g.scale);
    tile.run(i0, rows, visible, g,
             [&](std::int64_t j0) { return std::pair(keys_t + j0 * g.c, values + j0 * g.c_padded); });
    for (std::int64_t r = 0; r < rows; ++r) {
      store_rows(o + (i0 + r) * g.q_stride, g.q_stride, tile.out + r * g.c_padded, 1, g, tile.share(r));
      lse[i0 + r] = tile.log_sum(r);
    }
  }
};

// dkeys and dvalues, in ascending order of place, collect the gradients of a task; dqueries has those of a tile.
struct Backward {
  Geometry g;
  Arena arena;
  float *keys, *keys_t, *values_t, *dkeys, *dvalues, *queries, *dout, *dqueries, *weights, *dscores;
  float delta[side];

  explicit Backward(const AttentionShape& shape) : g(shape) {
    arena.reserve(3 * g.head_floats() + 2 * g.keys_padded * g.c + 3 * side * g.c_padded + 2 * side * side);
    keys = arena.take(g.head_floats());
    dkeys = arena.take(g.head_floats());
    dvalues = arena.take(g.head_floats());
    queries = arena.take(side * g.c_padded);
    dout = arena.take(side * g.c_padded);
    dqueries = arena.take(side * g.c_padded);
    weights = arena.take(side * side);
    dscores = arena.take(side * side);
    keys_t = arena.take(g.keys_padded * g.c);
    values_t = arena.take(g.keys_padded * g.c);
  }

  template <class T>
  void load_head(const T* k, const T* v, const Visible& visible) {
    load_transposed(values_t, keys, v, visible.order, g);
    load_transposed(keys_t, keys, k, visible.order, g);
    load_rows(keys, k, visible.order, g.kv_stride, g.keys, g.keys_padded, g, 1.0f);
    std::fill(dkeys, dkeys + g.head_floats(), 0.0f);
    std::fill(dvalues, dvalues + g.head_floats(), 0.0f);
  }

  // Leaves the gradient of queries [i0, i0 + rows) of one head, but for g.scale, in dqueries [rows, c_padded].
  template <class T>
  void run(const T* d_o, const T* q, const T* o, const float* lse, std::int64_t i0, std::int64_t rows,
           const Visible& visible) {
    const std::int64_t tile_rows = tile::padded(rows, tile::row_step), at = i0 * g.q_stride;
    load_rows(queries, q + at, nullptr, g.q_stride, rows, tile_rows, g, g.scale);
    load_rows(dout, d_o + at, nullptr, g.q_stride, rows, tile_rows, g, 1.0f);
    for (std::int64_t r = 0; r < rows; ++r) {
      float dot = 0.0f;
      const T* o_row = o + at + r * g.q_stride;
#pragma omp simd reduction(+ : dot)
      for (std::int64_t e = 0; e < g.c; ++e) {
        dot += dout[r * g.c_padded + e] * to_float(o_row[e]);
      }
      delta[r] = dot;
    }
    std::fill(dqueries, dqueries + tile_rows * g.c_padded, 0.0f);
    const KeyRange span = visible.span(i0, rows);
    for (std::int64_t j0 = span.begin; j0 < span.end; j0 += side) {
      if (!visible.meets(i0, rows, j0)) {
        continue;
      }
      const std::int64_t count = std::min(side, span.end - j0), columns = tile::padded(count, tile::lanes);
      const TileView seen(visible, i0, rows, j0, count);
      for (std::int64_t r0 = 0; r0 < tile_rows; r0 += TileView::group) {
        const std::int64_t group_rows = std::min(TileView::group, tile_rows - r0), of_group = seen.keys_of(r0);
        const std::int64_t group_columns = tile::padded(of_group, tile::lanes);
        tile::multiply(group_rows, group_columns, g.c, queries + r0 * g.c_padded, g.c_padded, 1, keys_t + j0 * g.c,
                       side, weights + r0 * side, side, false);
        tile::multiply(group_rows, group_columns, g.c, dout + r0 * g.c_padded, g.c_padded, 1, values_t + j0 * g.c, side,
                       dscores + r0 * side, side, false);
        for (std::int64_t r = r0; r < r0 + group_rows; ++r) {
          score_gradients(weights + r * side, dscores + r * side, columns, seen[r], r < rows ? lse[i0 + r] : 0.0f,
                          r < rows ? delta[r] : 0.0f);
        }
        tile::multiply(group_rows, g.c_padded, of_group, dscores + r0 * side, side, 1, keys + j0 * g.c_padded,
                       g.c_padded, dqueries + r0 * g.c_padded, g.c_padded, true);
      }
      // Rows of dk and dv are keys: weights and score gradients are used transposed.
      for (std::int64_t j = 0; j < columns; j += TileView::group) {
        const std::int64_t group =
            std::min(TileView::group, columns - j);  // narrow vectors: columns may be half of one
        const KeyRange from = seen.queries_of(j, rows);
        const std::int64_t steps = from.end - from.begin, at_score = from.begin * side + j;
        const std::int64_t first_row = from.begin * g.c_padded, to = (j0 + j) * g.c_padded;
        tile::multiply(group, g.c_padded, steps, weights + at_score, 1, side, dout + first_row, g.c_padded,
                       dvalues + to, g.c_padded, true);
        tile::multiply(group, g.c_padded, steps, dscores + at_score, 1, side, queries + first_row, g.c_padded,
                       dkeys + to, g.c_padded, true);
      }
    }
  }
};

// Calls fn(state, sequence, KV head) for a range of tasks, on as many threads as there are.
template <class State, class F>
void for_tasks(int threads, const AttentionShape& s, F&& fn) {
  parallel_for(threads, s.positions == 0 ? 0 : s.batch * s.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    State state(s);
    for (std::int64_t task = begin; task < end; ++task) {
      fn(state, task / s.kv_heads, task % s.kv_heads);
    }
  });
}

}  // namespace orthant::attention_tiles
