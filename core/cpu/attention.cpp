// Causal attention by tiles of 64 queries by 64 keys, never a whole row of scores: forward with a running maximum
// (Milakov and Gimelshein, "Online normalizer calculation for softmax"), backward from the saved log-sum-exp (Dao et
// al., "FlashAttention"). A task is one KV head of one sequence with all its query heads: dk and dv are summed by one
// thread in a fixed order.
#include <cmath>
#include <limits>
#include <vector>

#include "core/cpu/bf16.h"
#include "core/cpu/check.h"
#include "core/cpu/cpu_stream.h"
#include "core/cpu/parallel.h"
#include "core/cpu/scratch.h"
#include "core/cpu/tile.h"
#include "core/cpu/vector_math.h"

namespace orthant {
namespace {

constexpr std::int64_t side = 64;  // of a tile
static_assert(side % tile::row_step == 0 && side % tile::column_step == 0);

// fp32 working memory of one task, carved from one buffer.
class Arena {
 public:
  void reserve(std::int64_t floats) {
    next_ = static_cast<float*>(buffer_.get(static_cast<std::size_t>(floats) * sizeof(float)));
  }
  float* take(std::int64_t floats) {
    float* taken = next_;
    next_ += floats;
    return taken;
  }

 private:
  ScratchBuffer buffer_;
  float* next_ = nullptr;
};

// Sizes shared by all tiles of a call.
struct Geometry {
  std::int64_t s, c, c_padded, s_padded, q_stride, kv_stride;
  float scale;
  explicit Geometry(const AttentionShape& shape)
      : s(shape.positions),
        c(shape.head_dim),
        c_padded(tile::padded(shape.head_dim, tile::column_step)),
        s_padded(tile::padded(shape.positions, side)),
        q_stride(shape.heads * shape.head_dim),
        kv_stride(shape.kv_heads * shape.head_dim),
        scale(1.0f / std::sqrt(static_cast<float>(shape.head_dim))) {}
  std::int64_t head_floats() const { return s_padded * c_padded; }
};

// `rows` rows of a head, times `scale`, to [padded_rows, c_padded], zeros around.
template <class T>
void load_rows(float* to, const T* from, std::int64_t stride, std::int64_t rows, std::int64_t padded_rows,
               const Geometry& g, float scale) {
  for (std::int64_t i = 0; i < padded_rows; ++i, to += g.c_padded) {
    const std::int64_t valid = i < rows ? g.c : 0;
    const T* row = from + (i < rows ? i : 0) * stride;
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

// A whole head [s_padded, c_padded] as one [c, side] block per tile of keys.
void transpose_blocks(float* to, const float* from, const Geometry& g) {
  for (std::int64_t j0 = 0; j0 < g.s_padded; j0 += side) {
    for (std::int64_t e = 0; e < g.c; ++e) {
      for (std::int64_t j = 0; j < side; ++j) {
        *to++ = from[(j0 + j) * g.c_padded + e];
      }
    }
  }
}

// The keys [begin, end) that query i may see.
struct Visible {
  const std::int32_t* first;  // of the sequence, or null
  std::int64_t begin(std::int64_t i) const { return first == nullptr ? 0 : std::min<std::int64_t>(first[i], i); }
  // The first tile of keys that any of these queries sees.
  std::int64_t first_tile(std::int64_t i0, std::int64_t rows) const {
    std::int64_t lowest = begin(i0);
    for (std::int64_t i = i0 + 1; i < i0 + rows; ++i) {
      lowest = std::min(lowest, begin(i));
    }
    return lowest / side * side;
  }
};

// Online softmax of one row of scores, of which keys [low, high) are seen: scores become weights; top, sum and the row
// of o so far are brought up to date.
void softmax_row(float* score, std::int64_t columns, std::int64_t low, std::int64_t high, float* top, float* sum,
                 float* o, std::int64_t width) {
  if (low >= high) {
    std::fill(score, score + columns, 0.0f);
    return;
  }
  std::fill(score, score + low, 0.0f);
  std::fill(score + high, score + columns, 0.0f);
  float highest = *top;
#pragma omp simd reduction(max : highest)
  for (std::int64_t j = low; j < high; ++j) {
    highest = score[j] > highest ? score[j] : highest;
  }
  float total = 0.0f;
#pragma omp simd reduction(+ : total)
  for (std::int64_t j = low; j < high; ++j) {
    const float e = fast_exp(score[j] - highest);
    score[j] = e;
    total += e;
  }
  const float shrink = fast_exp(*top - highest);
  *sum = *sum * shrink + total;
  *top = highest;
#pragma omp simd
  for (std::int64_t e = 0; e < width; ++e) {
    o[e] *= shrink;
  }
}

struct Forward {
  Geometry g;
  Arena arena;
  float *keys_t, *values, *queries, *scores, *out;
  float top[side], sum[side];

  explicit Forward(const AttentionShape& shape) : g(shape) {
    arena.reserve(2 * g.head_floats() + g.s_padded * g.c + 2 * side * g.c_padded + side * side);
    values = arena.take(g.head_floats());
    out = arena.take(side * g.c_padded);
    queries = arena.take(side * g.c_padded);
    scores = arena.take(side * side);
    keys_t = arena.take(g.s_padded * g.c);
  }

  template <class T>
  void load_head(const T* k, const T* v) {
    load_rows(values, k, g.kv_stride, g.s, g.s_padded, g, 1.0f);
    transpose_blocks(keys_t, values, g);
    load_rows(values, v, g.kv_stride, g.s, g.s_padded, g, 1.0f);
  }

  // Queries [i0, i0 + rows) of one head.
  template <class T>
  void run(T* o, float* lse, const T* q, std::int64_t i0, std::int64_t rows, const Visible& visible) {
    const std::int64_t tile_rows = tile::padded(rows, tile::row_step);
    load_rows(queries, q + i0 * g.q_stride, g.q_stride, rows, tile_rows, g, g.scale);
    std::fill(out, out + tile_rows * g.c_padded, 0.0f);
    std::fill(top, top + side, -std::numeric_limits<float>::infinity());
    std::fill(sum, sum + side, 0.0f);
    for (std::int64_t j0 = visible.first_tile(i0, rows); j0 < i0 + rows; j0 += side) {
      const std::int64_t keys = std::min(side, i0 + rows - j0), columns = tile::padded(keys, tile::column_step);
      tile::multiply(tile_rows, columns, g.c, queries, g.c_padded, 1, keys_t + j0 * g.c, side, scores, side, false);
      for (std::int64_t r = 0; r < rows; ++r) {
        softmax_row(scores + r * side, columns, std::max<std::int64_t>(visible.begin(i0 + r) - j0, 0),
                    std::min(columns, i0 + r - j0 + 1), top + r, sum + r, out + r * g.c_padded, g.c_padded);
      }
      tile::multiply(tile_rows, g.c_padded, keys, scores, side, 1, values + j0 * g.c_padded, g.c_padded, out,
                     g.c_padded, true);
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      store_rows(o + (i0 + r) * g.q_stride, g.q_stride, out + r * g.c_padded, 1, g, 1.0f / sum[r]);
      lse[i0 + r] = top[r] + std::log(sum[r]);
    }
  }
};

struct Backward {
  Geometry g;
  Arena arena;
  float *keys, *keys_t, *values_t, *dkeys, *dvalues, *queries, *dout, *dqueries, *weights, *dscores;
  float delta[side];

  explicit Backward(const AttentionShape& shape) : g(shape) {
    arena.reserve(3 * g.head_floats() + 2 * g.s_padded * g.c + 3 * side * g.c_padded + 2 * side * side);
    keys = arena.take(g.head_floats());
    dkeys = arena.take(g.head_floats());
    dvalues = arena.take(g.head_floats());
    queries = arena.take(side * g.c_padded);
    dout = arena.take(side * g.c_padded);
    dqueries = arena.take(side * g.c_padded);
    weights = arena.take(side * side);
    dscores = arena.take(side * side);
    keys_t = arena.take(g.s_padded * g.c);
    values_t = arena.take(g.s_padded * g.c);
  }

  template <class T>
  void load_head(const T* k, const T* v) {
    load_rows(keys, v, g.kv_stride, g.s, g.s_padded, g, 1.0f);
    transpose_blocks(values_t, keys, g);
    load_rows(keys, k, g.kv_stride, g.s, g.s_padded, g, 1.0f);
    transpose_blocks(keys_t, keys, g);
    std::fill(dkeys, dkeys + g.head_floats(), 0.0f);
    std::fill(dvalues, dvalues + g.head_floats(), 0.0f);
  }

  template <class T>
  void run(T* dq, const T* d_o, const T* q, const T* o, const float* lse, std::int64_t i0, std::int64_t rows,
           const Visible& visible) {
    const std::int64_t tile_rows = tile::padded(rows, tile::row_step), at = i0 * g.q_stride;
    load_rows(queries, q + at, g.q_stride, rows, tile_rows, g, g.scale);
    load_rows(dout, d_o + at, g.q_stride, rows, tile_rows, g, 1.0f);
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
    for (std::int64_t j0 = visible.first_tile(i0, rows); j0 < i0 + rows; j0 += side) {
      const std::int64_t count = std::min(side, i0 + rows - j0), columns = tile::padded(count, tile::column_step);
      tile::multiply(tile_rows, columns, g.c, queries, g.c_padded, 1, keys_t + j0 * g.c, side, weights, side, false);
      tile::multiply(tile_rows, columns, g.c, dout, g.c_padded, 1, values_t + j0 * g.c, side, dscores, side, false);
      for (std::int64_t r = 0; r < tile_rows; ++r) {
        float *p = weights + r * side, *ds = dscores + r * side;
        // Keys [low, high) are seen, none by the rows of padding.
        const std::int64_t high = r < rows ? std::clamp<std::int64_t>(i0 + r - j0 + 1, 0, columns) : 0;
        const std::int64_t low = r < rows ? std::clamp<std::int64_t>(visible.begin(i0 + r) - j0, 0, high) : 0;
        std::fill(p, p + low, 0.0f);
        std::fill(ds, ds + low, 0.0f);
        std::fill(p + high, p + columns, 0.0f);
        std::fill(ds + high, ds + columns, 0.0f);
        const float shift = r < rows ? lse[i0 + r] : 0.0f, mean = r < rows ? delta[r] : 0.0f;
#pragma omp simd
        for (std::int64_t j = low; j < high; ++j) {
          const float weight = fast_exp(p[j] - shift);
          p[j] = weight;
          ds[j] = weight * (ds[j] - mean);
        }
      }
      // Rows of dk and dv are keys: weights and score gradients are used transposed.
      tile::multiply(columns, g.c_padded, rows, weights, 1, side, dout, g.c_padded, dvalues + j0 * g.c_padded,
                     g.c_padded, true);
      tile::multiply(columns, g.c_padded, rows, dscores, 1, side, queries, g.c_padded, dkeys + j0 * g.c_padded,
                     g.c_padded, true);
      tile::multiply(tile_rows, g.c_padded, count, dscores, side, 1, keys + j0 * g.c_padded, g.c_padded, dqueries,
                     g.c_padded, true);
    }
    store_rows(dq + at, g.q_stride, dqueries, rows, g, g.scale);
  }
};

void check(const char* operation, const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
           const Tensor& first, const AttentionShape& s) {
  require(s.head_dim > 0 && s.kv_heads > 0 && s.heads % s.kv_heads == 0,
          "{}: {} heads of {} channels cannot share {} KV heads", operation, s.heads, s.head_dim, s.kv_heads);
  const std::int64_t rows = s.batch * s.positions;
  require_float(operation, "q", q);
  require_shape(operation, "q", q, {rows, s.heads * s.head_dim});
  require_tensor(operation, "k", k, q.dtype(), {rows, s.kv_heads * s.head_dim});
  require_tensor(operation, "v", v, q.dtype(), {rows, s.kv_heads * s.head_dim});
  require_tensor(operation, "o", o, q.dtype(), q.shape());
  require_tensor(operation, "lse", lse, DType::f32, {s.batch, s.heads, s.positions});
  if (first.defined()) {
    require_dtype(operation, "first", first, {DType::i32});
    require_elements(operation, "first", first, rows);
    for (std::int64_t t = 0; t < rows; ++t) {
      const std::int32_t value = first.as<std::int32_t>()[t];
      require(value >= 0 && value <= t % s.positions, "{}: first[{}] is {}, expected a position in [0, {}]", operation,
              t, value, t % s.positions);
    }
  }
}

// Calls fn(begin of the sequence's tokens, KV head, index of its first lse row, first visible positions) for a range
// of tasks, on as many threads as there are.
template <class State, class F>
void for_tasks(int threads, const AttentionShape& s, const Tensor& first, F&& fn) {
  const auto* firsts = first.as<std::int32_t>();
  parallel_for(threads, s.positions == 0 ? 0 : s.batch * s.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    State state(s);
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t sequence = task / s.kv_heads, kv = task % s.kv_heads;
      fn(state, sequence, kv, Visible{firsts == nullptr ? nullptr : firsts + sequence * s.positions});
    }
  });
}

}  // namespace

void CpuStream::attention(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor& first, const AttentionShape& shape) {
  check("attention", o, lse, q, k, v, first, shape);
  const std::int64_t c = shape.head_dim, group = shape.heads / shape.kv_heads;
  with_float_type(q.dtype(), [&](auto type) {
    using T = decltype(type);
    for_tasks<Forward>(
        threads_, shape, first, [&](Forward& state, std::int64_t sequence, std::int64_t kv, const Visible& visible) {
          const Geometry& g = state.g;
          const std::int64_t token = sequence * g.s;
          state.load_head(k.as<T>() + token * g.kv_stride + kv * c, v.as<T>() + token * g.kv_stride + kv * c);
          for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
            const std::int64_t at = token * g.q_stride + h * c;
            for (std::int64_t i0 = 0; i0 < g.s; i0 += side) {
              state.run(o.as<T>() + at, lse.as<float>() + (sequence * shape.heads + h) * g.s, q.as<T>() + at, i0,
                        std::min(side, g.s - i0), visible);
            }
          }
        });
  });
}

void CpuStream::attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& d_o,
                                   const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
                                   const Tensor& lse, const Tensor& first, const AttentionShape& shape) {
  check("attention_backward", o, lse, q, k, v, first, shape);
  require_tensor("attention_backward", "dq", dq, q.dtype(), q.shape());
  require_tensor("attention_backward", "dk", dk, q.dtype(), k.shape());
  require_tensor("attention_backward", "dv", dv, q.dtype(), v.shape());
  require_tensor("attention_backward", "d_o", d_o, q.dtype(), q.shape());
  const std::int64_t c = shape.head_dim, group = shape.heads / shape.kv_heads;
  with_float_type(q.dtype(), [&](auto type) {
    using T = decltype(type);
    for_tasks<Backward>(
        threads_, shape, first, [&](Backward& state, std::int64_t sequence, std::int64_t kv, const Visible& visible) {
          const Geometry& g = state.g;
          const std::int64_t token = sequence * g.s, kv_at = token * g.kv_stride + kv * c;
          state.load_head(k.as<T>() + kv_at, v.as<T>() + kv_at);
          for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
            const std::int64_t at = token * g.q_stride + h * c;
            for (std::int64_t i0 = 0; i0 < g.s; i0 += side) {
              state.run(dq.as<T>() + at, d_o.as<T>() + at, q.as<T>() + at, o.as<T>() + at,
                        lse.as<float>() + (sequence * shape.heads + h) * g.s, i0, std::min(side, g.s - i0), visible);
            }
          }
          store_rows(dk.as<T>() + kv_at, g.kv_stride, state.dkeys, g.s, g, 1.0f);
          store_rows(dv.as<T>() + kv_at, g.kv_stride, state.dvalues, g.s, g, 1.0f);
        });
  });
}

}  // namespace orthant
