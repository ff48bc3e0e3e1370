// Attention by tiles of 64 queries by 64 keys, never a whole row of scores: forward with a running maximum (Milakov and
// Gimelshein, "Online normalizer calculation for softmax"), backward from the saved log-sum-exp (Dao et al.,
// "FlashAttention"). A task is one KV head of one sequence with all its query heads: dk and dv are summed by one
// thread in a fixed order.
// Operands lie in items of one step or two (attention_items.h); what they are made of is template parameter T.
//
// The keys of a task are taken in ascending order of their place in the sequence. What a query sees is then a range of
// them, whatever order they lie in, and a tile of keys that no query of a tile sees costs nothing.
#pragma once

#include <orthant/ops.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/device/cpu/attention_items.h"
#include "core/device/cpu/attention_rows.h"
#include "core/device/cpu/attention_view.h"
#include "core/device/cpu/parallel.h"
#include "core/device/cpu/tile.h"
#include "core/device/cpu/tile_exp.h"
#include "core/device/cpu/vector_math.h"

namespace orthant::attention_tiles {

// Sets what lies outside `seen`: in the vectors that it lies in to `beside`, in the rest of the row to zero. Returns
// those vectors: a vector that is partly seen costs less than its elements one by one. `columns` are whole vectors.
inline KeyRange set_unseen(float* row, std::int64_t columns, const KeyRange& seen, float beside) {
  const KeyRange whole{seen.begin / tile::lanes * tile::lanes, tile::padded(seen.end, tile::lanes)};
  for (std::int64_t j = 0; j < whole.begin; j += tile::lanes) {
    tile::store(row + j, tile::Vector{});
  }
  for (std::int64_t j = whole.end; j < columns; j += tile::lanes) {
    tile::store(row + j, tile::Vector{});
  }
  if (whole.begin < seen.begin) {
    tile::set_lanes(row + whole.begin, 0, seen.begin - whole.begin, beside);
  }
  if (seen.end < whole.end) {
    tile::set_lanes(row + whole.end - tile::lanes, seen.end - whole.end + tile::lanes, tile::lanes, beside);
  }
  return whole;
}

// Scores s that are `seen`, times `scale`, become cap tanh(s / cap); with cap 0 they stay.
inline void cap_scores(float* row, const KeyRange& seen, float scale, float cap) {
  if (cap == 0) {
    return;
  }
  for (std::int64_t j = seen.begin / tile::lanes * tile::lanes; j < seen.end; j += tile::lanes) {
    tile::store(row + j, tile::tanh_of(tile::load(row + j) * (scale / cap)) * (cap / scale));
  }
}

// One tile of queries of one head (or of heads that share keys), and what it makes of tiles of keys. A query's result
// does not depend on which others are in the tile.
template <class T>
struct QueryTile {
  using Items = attention_tiles::Items<T>;
  float *queries, *scores, *out;  // [side, row], [side, side], [side, c_padded]
  float top[side];
  tile::Vector sum[side];  // by lanes
  Ahead<T> ahead;

  static std::int64_t floats(const Geometry<T>& g) { return side * (g.row + g.c_padded + side); }
  void take(Arena& arena, const Geometry<T>& g) {
    out = arena.take(side * g.c_padded);
    queries = arena.take(side * g.row);
    scores = arena.take(side * side);
  }

  // The first `rows` queries, which have been loaded; query r sees what visible.range[i0 + r] says. block(j0) gives
  // keys [j0, j0 + side) as a pair of pointers: keys_t [c_items, side] and values [side / steps, c_padded], of finite
  // numbers.
  template <class Block>
  void run(std::int64_t i0, std::int64_t rows, const Visible& visible, const Geometry<T>& g, Block&& block) {
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
        const std::int64_t count = std::min(TileView::group, tile_rows - r0),
                           of_group = seen.keys_of(r0, TileView::group);
        float* const score = scores + r0 * side;
        ahead.fetch();
        tile::multiply<Items>(count, tile::padded(of_group, tile::lanes), g.c_items, queries + r0 * g.row, g.row, 1,
                              keys_t, side, score, side, false);
        softmax(r0, std::min(rows - r0, TileView::group), columns, seen, g);
        for (std::int64_t r = r0; r < r0 + count; r += tile::row_step) {
          tile::multiply<Items>(tile::row_step, g.c_padded, Items::of(seen.keys_of(r, tile::row_step)),
                                scores + r * side, side, 1, values, g.c_padded, out + r * g.c_padded, g.c_padded, true);
        }
      }
    }
  }
  float whole_sum(std::int64_t r) const { return tile::sum_of(sum[r])[0]; }
  float share(std::int64_t r) const {
    const float whole = whole_sum(r);
    return whole == 0.0f ? 0.0f : 1.0f / whole;
  }
  float log_sum(std::int64_t r) const { return top[r] + std::log(whole_sum(r)); }

 private:
  // Online softmax of scores of `count` queries from r0 on: scores become items of weights, zero where a key is not
  // seen; top, sum and out so far are brought up to date.
  void softmax(std::int64_t r0, std::int64_t count, std::int64_t columns, const TileView& seen, const Geometry<T>& g) {
    KeyRange whole[TileView::group];
    float before[TileView::group], shrink[TileView::group];
    std::copy_n(top + r0, TileView::group, before);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t r = r0 + i;
      float* const score = scores + r * side;
      whole[i] = {0, 0};
      if (seen[r].begin >= seen[r].end) {
        std::fill(score, score + columns, 0.0f);
        continue;
      }
      cap_scores(score, seen[r], g.score_scale, g.softcap);
      whole[i] = set_unseen(score, columns, seen[r], -std::numeric_limits<float>::infinity());
      tile::Vector highest = -std::numeric_limits<float>::infinity() - tile::Vector{};  // NaN is not higher
      for (std::int64_t j = whole[i].begin; j < whole[i].end; j += tile::lanes) {
        const tile::Vector x = tile::load(score + j);
        highest = x > highest ? x : highest;
      }
      top[r] = std::max(top[r], g.score_scale * tile::greatest_of(highest)[0]);
    }
#pragma omp simd
    for (std::int64_t i = 0; i < TileView::group; ++i) {
      shrink[i] = fast_exp(before[i] - top[r0 + i]);
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t r = r0 + i;
      float *const score = scores + r * side, *const o = out + r * g.c_padded;
      tile::Vector total = sum[r];
      if (top[r] != before[i] && before[i] != -std::numeric_limits<float>::infinity()) {
        total *= shrink[i];
        for (std::int64_t e = 0; e < g.c_padded; e += tile::lanes) {
          tile::store(o + e, tile::load(o + e) * shrink[i]);
        }
      }
      for (std::int64_t j = whole[i].begin; j < whole[i].end; j += tile::lanes) {
        const tile::Vector weight = tile::exp_below(Items::exponent(tile::load(score + j), g.score_scale, top[r]));
        tile::store(score + j, weight);
        total += weight;
      }
      sum[r] = total;
      if constexpr (Items::steps == 2) {
        Items::round_along_row(score, score, columns);
      }
    }
  }
};

template <class T>
struct Forward {
  Geometry<T> g;
  Arena arena;
  QueryTile<T> tile;
  float *keys_t, *values;

  explicit Forward(const AttentionShape& shape) : g(shape) {
    arena.reserve(g.along_keys() + g.along_channels() + QueryTile<T>::floats(g));
    values = arena.take(g.along_keys());
    tile.take(arena, g);
    keys_t = arena.take(g.along_channels());
  }

  void load_head(const T* k, const T* v, const Visible& visible) {
    load_transposed(keys_t, tile.queries, k, visible.order, g);
    load_steps(values, v, visible.order, g.kv_stride, g.keys, g.keys_padded, g);
  }

  // Queries [i0, i0 + rows) of one head. A query that sees nothing gets 0 and -infinity.
  template <class O>
  void run(O* o, float* lse, const T* q, std::int64_t i0, std::int64_t rows, const Visible& visible) {
    load_rows(tile.queries, q + i0 * g.q_stride, nullptr, g.q_stride, rows, tile::padded(rows, tile::row_step), g,
              g.query_scale);
    tile.run(i0, rows, visible, g,
             [&](std::int64_t j0) { return std::pair(keys_t + g.channels_at(j0), values + g.keys_at(j0)); });
    for (std::int64_t r = 0; r < rows; ++r) {
      store_rows(o + (i0 + r) * g.q_stride, g.q_stride, tile.out + r * g.c_padded, 1, g, tile.share(r));
      lse[i0 + r] = tile.log_sum(r);
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
