// Rows of a head as operands of attention's products (attention_items.h), and sums back to rows; the sizes of a call,
// and its working memory.
#pragma once

#include <orthant/ops.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/device/cpu/attention_items.h"
#include "core/device/cpu/attention_view.h"
#include "core/device/cpu/bf16.h"
#include "core/device/cpu/scratch.h"
#include "core/device/cpu/tile.h"

namespace orthant::attention_tiles {

// Working memory of one task, carved from one buffer. What is taken begins a few cache lines off from one another:
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

// Sizes shared by all tiles of a call, for operands of type T.
template <class T>
struct Geometry {
  using Items = attention_tiles::Items<T>;
  std::int64_t queries, keys, c, c_padded, keys_padded, q_stride, kv_stride;
  std::int64_t c_items, row;  // items of a row of c channels; padded to whole vectors
  // Of scores. fp32 queries are scaled as they are loaded, scores of pairs when they are there.
  float scale, query_scale, score_scale;
  float softcap;
  explicit Geometry(const AttentionShape& shape)
      : queries(shape.positions),
        keys(shape.kv_positions == 0 ? shape.positions : shape.kv_positions),
        c(shape.head_dim),
        c_padded(tile::padded(shape.head_dim, tile::lanes)),
        keys_padded(tile::padded(keys, side)),
        q_stride(shape.heads * shape.head_dim),
        kv_stride(shape.kv_heads * shape.head_dim),
        c_items(Items::of(c)),
        row(tile::padded(c_items, tile::lanes)),
        scale(1.0f / std::sqrt(static_cast<float>(shape.head_dim))),
        query_scale(Items::steps == 1 ? scale : 1.0f),
        score_scale(Items::steps == 1 ? 1.0f : scale),
        softcap(shape.softcap) {}
  // Of a head: fp32 sums; items with the channels, or the keys, as the steps of the reduction.
  std::int64_t sums_of_head() const { return keys_padded * c_padded; }
  std::int64_t along_channels() const { return keys_padded * c_items; }
  std::int64_t along_keys() const { return keys_padded / Items::steps * c_padded; }
  // Where a tile of keys begins there.
  std::int64_t channels_at(std::int64_t j0) const { return j0 * c_items; }
  std::int64_t keys_at(std::int64_t j0) const { return j0 / Items::steps * c_padded; }
};

// A head's rows lie too far apart for the processor to fetch ahead by itself. locality: 3 for the first-level cache, 2
// for the second.
template <int locality = 3, class T>
void fetch_row(const T* row, std::int64_t c) {
  for (std::int64_t e = 0; e < c; e += 64 / static_cast<std::int64_t>(sizeof(T))) {
    __builtin_prefetch(row + e, 0, locality);
  }
}

// Rows of heads that will be read soon, fetched into the second-level cache a few at a time while products are made:
// the first-level cache is full of what is multiplied.
template <class T>
class Ahead {
 public:
  static constexpr int most_parts = 5;
  // Forgets what is left of a part.
  void set(int part, const T* from, std::int64_t rows, std::int64_t stride, std::int64_t c) {
    parts_[part] = {from, rows, stride, c};
  }
  // A few rows of the first part that has any. Called before the products of a group of rows of a tile.
  void fetch() {
    std::int64_t rows = 24;
    for (Part& part : parts_) {
      for (; rows > 0 && part.left > 0; --rows, --part.left, part.next += part.stride) {
        fetch_row<2>(part.next, part.c);
      }
    }
  }

 private:
  struct Part {
    const T* next;
    std::int64_t left, stride, c;
  };
  Part parts_[most_parts] = {};
};

// `rows` rows of a head (row order[i] where `order` is given), times `scale` where items are scaled, with the channels
// as the steps of the reduction: to [padded_rows, row], zeros around. From: T, or float for T's numbers.
template <class T, class From>
void load_rows(float* to, const From* from, const std::int32_t* order, std::int64_t stride, std::int64_t rows,
               std::int64_t padded_rows, const Geometry<T>& g, float scale) {
  for (std::int64_t i = 0; i < padded_rows; ++i, to += g.row) {
    const std::int64_t valid = i < rows ? g.c : 0, at = i < rows ? i : 0;
    if (const std::int64_t next = i + 8; next < rows) {
      fetch_row(from + (order == nullptr ? next : order[next]) * stride, g.c);
    }
    Items<T>::along_row(to, from + (order == nullptr ? at : order[at]) * stride, valid, scale);
    std::fill(to + Items<T>::of(valid), to + g.row, 0.0f);
  }
}

// The same rows as the steps of the reduction: to [padded_rows / steps, c_padded].
template <class T>
void load_steps(float* to, const T* from, const std::int32_t* order, std::int64_t stride, std::int64_t rows,
                std::int64_t padded_rows, const Geometry<T>& g) {
  if constexpr (Items<T>::steps == 1) {
    load_rows(to, from, order, stride, rows, padded_rows, g, 1.0f);
  } else {
    const auto row = [&](std::int64_t i) { return from + (order == nullptr ? i : order[i]) * stride; };
    for (std::int64_t i = 0; i < padded_rows; i += 2, to += g.c_padded) {
      if (i + 9 < rows) {
        fetch_row(row(i + 8), g.c);
        fetch_row(row(i + 9), g.c);
      }
      const std::int64_t valid = i < rows ? g.c : 0;
      if (i < rows) {
        Items<T>::across_rows(to, row(i), i + 1 < rows ? row(i + 1) : nullptr, g.c);
      }
      std::fill(to + valid, to + g.c_padded, 0.0f);
    }
  }
}

// Rows of sums [rows, c_padded], times `scale`. To: T, or float.
template <class T, class To>
void store_rows(To* to, std::int64_t stride, const float* from, std::int64_t rows, const Geometry<T>& g, float scale) {
  for (std::int64_t i = 0; i < rows; ++i) {
#pragma omp simd
    for (std::int64_t e = 0; e < g.c; ++e) {
      to[i * stride + e] = from_float<To>(scale * from[i * g.c_padded + e]);
    }
  }
}

// store_rows, but +=, to row order[i] where `order` is given.
template <class T>
void add_rows(float* to, const std::int32_t* order, std::int64_t stride, const float* from, std::int64_t rows,
              const Geometry<T>& g, float scale) {
  for (std::int64_t i = 0; i < rows; ++i) {
    float* row = to + (order == nullptr ? i : order[i]) * stride;
#pragma omp simd
    for (std::int64_t e = 0; e < g.c; ++e) {
      row[e] += scale * from[i * g.c_padded + e];
    }
  }
}

// One tile of keys [side, row] as [c_items, side].
template <class T>
void transpose_tile(float* to, const float* from, const Geometry<T>& g) {
  for (std::int64_t e = 0; e < g.c_items; e += tile::lanes) {
    for (std::int64_t j = 0; j < side; j += tile::lanes) {
      tile::transpose(to + e * side + j, side, from + j * g.row + e, g.row, std::min(tile::lanes, g.c_items - e));
    }
  }
}

// A whole head of keys or values as one [c_items, side] block per tile of keys; `rows` holds a tile as it is loaded.
template <class T>
void load_transposed(float* to, float* rows, const T* from, const std::int32_t* order, const Geometry<T>& g) {
  for (std::int64_t j = 0; j < g.keys; j += side) {
    load_rows(rows, order == nullptr ? from + j * g.kv_stride : from, order == nullptr ? nullptr : order + j,
              g.kv_stride, std::min(side, g.keys - j), side, g, 1.0f);
    transpose_tile(to + g.channels_at(j), rows, g);
  }
}

}  // namespace orthant::attention_tiles
