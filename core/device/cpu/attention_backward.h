// The backward pass of attention by tiles; see attention_tiles.h.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/device/cpu/attention_tiles.h"

namespace orthant::attention_tiles {

// One row of scores p and of their gradients' first part ds: scores, times `scale`, become weights, ds the gradients of
// scaled scores.
template <class T>
void score_gradients(float* p, float* ds, std::int64_t columns, const KeyRange& seen, float scale, float cap, float lse,
                     float mean) {
  if (seen.begin >= seen.end) {
    std::fill(p, p + columns, 0.0f);
    std::fill(ds, ds + columns, 0.0f);
    return;
  }
  cap_scores(p, seen, scale, cap);
  set_unseen(ds, columns, seen, 0.0f);
  const KeyRange whole = set_unseen(p, columns, seen, -std::numeric_limits<float>::infinity());
  for (std::int64_t j = whole.begin; j < whole.end; j += tile::lanes) {
    const tile::Vector score = tile::load(p + j);
    const tile::Vector weight = tile::exp_below(Items<T>::exponent(score, scale, lse));
    tile::Vector d = weight * (tile::load(ds + j) - mean);
    if (cap != 0) {
      const tile::Vector share = score * (scale / cap), slope = 1.0f - share * share;
      d *= slope > tile::Vector{} ? slope : tile::Vector{};  // what is not seen has none
    }
    tile::store(p + j, weight);
    tile::store(ds + j, d);
  }
}

// dkeys and dvalues, in ascending order of place, collect the gradients of a task; dqueries has those of a tile.
template <class T>
struct Backward {
  using Items = attention_tiles::Items<T>;
  Geometry<T> g;
  Arena arena;
  // Of a head. keys: the steps of dq's sums.
  float *keys, *keys_t, *values_t, *dkeys, *dvalues;
  // Of a tile of queries: rows for products with keys_t and values_t, the same as steps of the sums over queries, dq.
  float *queries, *dout, *query_steps, *dout_steps, *dqueries;
  // [side, side], as they are computed and as steps of the sums over queries; gradients as steps of the sums over keys.
  float *weights, *dscores, *dscore_rows;
  float delta[side];
  Ahead<T> ahead;
  static constexpr std::int64_t dscore_row = side / Items::steps;

  explicit Backward(const AttentionShape& shape) : g(shape) {
    constexpr bool pairs = Items::steps == 2;
    const std::int64_t tile_steps = side / Items::steps * g.c_padded;
    arena.reserve(g.along_keys() + 2 * g.sums_of_head() + 2 * g.along_channels() + 2 * side * g.row +
                  side * g.c_padded + 2 * side * side + (pairs ? 2 * tile_steps + side * dscore_row : 0));
    keys = arena.take(g.along_keys());
    dkeys = arena.take(g.sums_of_head());
    dvalues = arena.take(g.sums_of_head());
    queries = arena.take(side * g.row);
    dout = arena.take(side * g.row);
    dqueries = arena.take(side * g.c_padded);
    weights = arena.take(side * side);
    dscores = arena.take(side * side);
    keys_t = arena.take(g.along_channels());
    values_t = arena.take(g.along_channels());
    query_steps = pairs ? arena.take(tile_steps) : queries;
    dout_steps = pairs ? arena.take(tile_steps) : dout;
    dscore_rows = pairs ? arena.take(side * dscore_row) : dscores;
  }

  void load_head(const T* k, const T* v, const Visible& visible) {
    load_transposed(values_t, queries, v, visible.order, g);
    load_transposed(keys_t, queries, k, visible.order, g);
    load_steps(keys, k, visible.order, g.kv_stride, g.keys, g.keys_padded, g);
    std::fill(dkeys, dkeys + g.sums_of_head(), 0.0f);
    std::fill(dvalues, dvalues + g.sums_of_head(), 0.0f);
  }

  // Leaves the gradient of queries [i0, i0 + rows) of one head, but for g.scale, in dqueries [rows, c_padded]. What it
  // adds to dkeys lacks g.score_scale.
  void run(const T* d_o, const T* q, const T* o, const float* lse, std::int64_t i0, std::int64_t rows,
           const Visible& visible) {
    const std::int64_t tile_rows = tile::padded(rows, tile::row_step), at = i0 * g.q_stride;
    load_queries(d_o + at, q + at, o + at, rows, tile_rows);
    std::fill(dqueries, dqueries + tile_rows * g.c_padded, 0.0f);
    const KeyRange span = visible.span(i0, rows);
    for (std::int64_t j0 = span.begin; j0 < span.end; j0 += side) {
      if (!visible.meets(i0, rows, j0)) {
        continue;
      }
      const std::int64_t count = std::min(side, span.end - j0), columns = tile::padded(count, tile::lanes);
      const TileView seen(visible, i0, rows, j0, count);
      for (std::int64_t r0 = 0; r0 < tile_rows; r0 += TileView::group) {
        const std::int64_t group_rows = std::min(TileView::group, tile_rows - r0),
                           of_group = seen.keys_of(r0, TileView::group);
        const std::int64_t group_columns = tile::padded(of_group, tile::lanes);
        ahead.fetch();
        tile::multiply<Items>(group_rows, group_columns, g.c_items, queries + r0 * g.row, g.row, 1,
                              keys_t + g.channels_at(j0), side, weights + r0 * side, side, false);
        tile::multiply<Items>(group_rows, group_columns, g.c_items, dout + r0 * g.row, g.row, 1,
                              values_t + g.channels_at(j0), side, dscores + r0 * side, side, false);
        for (std::int64_t r = r0; r < r0 + group_rows; ++r) {
          score_gradients<T>(weights + r * side, dscores + r * side, columns, seen[r], g.score_scale, g.softcap,
                             r < rows ? lse[i0 + r] : 0.0f, r < rows ? delta[r] : 0.0f);
        }
        round_group(r0, group_rows, columns);
        for (std::int64_t r = r0; r < r0 + group_rows; r += tile::row_step) {
          tile::multiply<Items>(tile::row_step, g.c_padded, Items::of(seen.keys_of(r, tile::row_step)),
                                dscore_rows + r * dscore_row, dscore_row, 1, keys + g.keys_at(j0), g.c_padded,
                                dqueries + r * g.c_padded, g.c_padded, true);
        }
      }
      // Rows of dk and dv are keys: weights and score gradients are used transposed. A partner that does not see a key
      // has the weight zero.
      for (std::int64_t j = 0; j < columns; j += tile::row_step) {
        const KeyRange from = seen.queries_of(j, tile::row_step, rows);
        const std::int64_t first = from.begin / Items::steps, steps = Items::of(from.end) - first;
        const std::int64_t depth = Items::steps * side, at_score = first * depth + j;
        const std::int64_t first_row = first * g.c_padded, to = (j0 + j) * g.c_padded;
        tile::multiply<Items>(tile::row_step, g.c_padded, steps, weights + at_score, 1, depth, dout_steps + first_row,
                              g.c_padded, dvalues + to, g.c_padded, true);
        tile::multiply<Items>(tile::row_step, g.c_padded, steps, dscores + at_score, 1, depth, query_steps + first_row,
                              g.c_padded, dkeys + to, g.c_padded, true);
      }
    }
  }

 private:
  void load_queries(const T* d_o, const T* q, const T* o, std::int64_t rows, std::int64_t tile_rows) {
    load_rows(queries, q, nullptr, g.q_stride, rows, tile_rows, g, g.query_scale);
    load_rows(dout, d_o, nullptr, g.q_stride, rows, tile_rows, g, 1.0f);
    if constexpr (Items::steps == 2) {
      load_steps(query_steps, q, nullptr, g.q_stride, rows, tile_rows, g);
      load_steps(dout_steps, d_o, nullptr, g.q_stride, rows, tile_rows, g);
    }
    const auto dot = [&](const auto* a, const T* b) {
      float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t e = 0; e < g.c; ++e) {
        sum += to_float(a[e]) * to_float(b[e]);
      }
      return sum;
    };
    for (std::int64_t r = 0; r < rows; ++r) {
      const T* const o_row = o + r * g.q_stride;
      delta[r] = Items::steps == 1 ? dot(dout + r * g.row, o_row) : dot(d_o + r * g.q_stride, o_row);
    }
  }

  // Makes items of the fp32 numbers of a group of rows, an even number.
  void round_group(std::int64_t r0, std::int64_t group_rows, std::int64_t columns) {
    if constexpr (Items::steps == 2) {
      for (std::int64_t r = r0; r < r0 + group_rows; r += 2) {
        float *const w = weights + r * side, *const d = dscores + r * side, *const along = dscore_rows + r * dscore_row;
        Items::round_along_row(along, d, columns);
        Items::round_along_row(along + dscore_row, d + side, columns);
        Items::round_across_rows(d, d + side, columns);
        Items::round_across_rows(w, w + side, columns);
      }
    }
  }
};

}  // namespace orthant::attention_tiles
