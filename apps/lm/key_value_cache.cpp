#include "apps/lm/key_value_cache.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "core/device/attention_check.h"
#include "core/device/cpu/attention_tiles.h"

namespace orthant {

using attention_tiles::Geometry;
using attention_tiles::side;

KeyValueCache::KeyValueCache(std::int64_t kv_heads, std::int64_t head_dim, DType dtype)
    : kv_heads_(kv_heads), head_dim_(head_dim), dtype_(dtype) {
  with_float_type(dtype, [&](auto type) {
    const Geometry<decltype(type)> g(AttentionShape{1, side, kv_heads, kv_heads, head_dim});
    keys_ = g.along_channels();
    values_ = g.along_keys();
  });
}

std::int64_t KeyValueCache::block_floats() const {
  return kv_heads_ * (keys_ + values_);
}

std::int64_t KeyValueCache::bytes_of(std::int64_t tokens) const {
  return (tokens + side - 1) / side * block_floats() * static_cast<std::int64_t>(sizeof(float));
}

void KeyValueCache::grow(std::int64_t rows) {
  const std::size_t wanted = static_cast<std::size_t>((length_ + rows + side - 1) / side);
  const std::size_t floats = static_cast<std::size_t>(block_floats()), had = blocks_.size();
  blocks_.reserve(wanted);
  while (blocks_.size() < wanted) {
    auto* memory = static_cast<float*>(std::aligned_alloc(64, floats * sizeof(float)));
    if (memory == nullptr) {
      blocks_.resize(had);
      throw std::bad_alloc();
    }
    std::fill_n(memory, floats, 0.0f);
    blocks_.emplace_back(memory, [](float* of) { std::free(of); });
  }
  length_ += rows;
}

KeyValueCache KeyValueCache::page(std::int64_t index) const {
  static_assert(page_tokens == side);
  require(index >= 0 && (index + 1) * side <= length_, "page {} of a cache of {} tokens is not full", index, length_);
  KeyValueCache made(kv_heads_, head_dim_, dtype_);
  made.blocks_ = {blocks_[static_cast<std::size_t>(index)]};
  made.length_ = side;
  return made;
}

void KeyValueCache::append(const KeyValueCache& pages) {
  require(length_ % side == 0 && pages.length_ % side == 0, "pages of {} tokens behind {}: both must be full",
          pages.length_, length_);
  require(kv_heads_ == pages.kv_heads_ && head_dim_ == pages.head_dim_ && dtype_ == pages.dtype_,
          "pages of another shape behind these");
  blocks_.insert(blocks_.end(), pages.blocks_.begin(), pages.blocks_.end());
  length_ += pages.length_;
}

float* KeyValueCache::block(std::int64_t kv_head, std::int64_t j0) const {
  return blocks_[static_cast<std::size_t>(j0 / side)].get() + kv_head * (keys_ + values_);
}

const float* KeyValueCache::keys(std::int64_t kv_head, std::int64_t j0) const {
  return block(kv_head, j0);
}

const float* KeyValueCache::values(std::int64_t kv_head, std::int64_t j0) const {
  return block(kv_head, j0) + keys_;
}

void KeyValueCache::put(std::int64_t kv_head, std::int64_t at, std::int64_t rows, const float* k, const float* v,
                        std::int64_t stride) {
  with_float_type(dtype_, [&](auto type) {
    using Items = attention_tiles::Items<decltype(type)>;
    constexpr std::int64_t steps = Items::steps;
    const std::int64_t padded = values_ / side * steps;
    for (std::int64_t i = at; i < at + rows; ++i, k += stride, v += stride) {
      float* const to = block(kv_head, i);
      float* const values = to + keys_ + i % side / steps * padded;
      for (std::int64_t e = 0; e < head_dim_; ++e) {
        Items::put(to + e / steps * side + i % side, e % steps, k[e]);
        Items::put(values + e, i % steps, v[e]);
      }
    }
  });
}

namespace {

using namespace attention_tiles;

// Of caches of type T; sizes have been checked.
template <class T>
void attend(int threads, std::span<float> o, std::span<float> lse, std::span<const float> q, std::span<const float> k,
            std::span<const float> v, std::span<const CachedRows> runs, const AttentionShape& shape,
            std::int64_t window) {
  const Geometry<T> g(shape);
  const std::int64_t heads = shape.heads, kv_heads = shape.kv_heads, head_dim = shape.head_dim;
  const std::int64_t group = heads / kv_heads, tasks = static_cast<std::int64_t>(runs.size()) * kv_heads;
  const std::int64_t tokens = static_cast<std::int64_t>(lse.size()) / heads;
  parallel_for(threads, tasks, 1, [&](std::int64_t begin, std::int64_t end) {
    Arena arena;
    arena.reserve(QueryTile<T>::floats(g));
    QueryTile<T> tile;
    tile.take(arena, g);
    std::vector<KeyRange> ranges;
    for (std::int64_t task = begin; task < end; ++task) {
      const CachedRows& run = runs[static_cast<std::size_t>(task / kv_heads)];
      const std::int64_t kv = task % kv_heads, at = run.row * g.kv_stride + kv * head_dim;
      run.cache->put(kv, run.position, run.rows, k.data() + at, v.data() + at, g.kv_stride);
      // The heads that share these keys stand beside each other: one token fills more of a tile.
      ranges.clear();
      for (std::int64_t i = 0; i < run.rows * group; ++i) {
        const std::int64_t position = run.position + i / group;
        ranges.push_back({window > 0 ? std::max<std::int64_t>(0, position + 1 - window) : 0, position + 1});
      }
      const auto place = [&](std::int64_t i) {
        return (run.row + i / group) * g.q_stride + (kv * group + i % group) * head_dim;
      };
      for (std::int64_t i0 = 0; i0 < run.rows * group; i0 += side) {
        const std::int64_t count = std::min(side, run.rows * group - i0);
        for (std::int64_t r = 0; r < tile::padded(count, tile::row_step); ++r) {
          const std::int64_t valid = r < count ? 1 : 0;
          load_rows(tile.queries + r * g.row, q.data() + (valid == 1 ? place(i0 + r) : 0), nullptr, 0, valid, 1, g,
                    g.query_scale);
        }
        tile.run(i0, count, {ranges.data(), nullptr}, g,
                 [&](std::int64_t j0) { return std::pair(run.cache->keys(kv, j0), run.cache->values(kv, j0)); });
        for (std::int64_t r = 0; r < count; ++r) {
          store_rows(o.data() + place(i0 + r), 0, tile.out + r * g.c_padded, 1, g, tile.share(r));
          const std::int64_t head = kv * group + (i0 + r) % group;
          lse[static_cast<std::size_t>(head * tokens + run.row + (i0 + r) / group)] = tile.log_sum(r);
        }
      }
    }
  });
}

}  // namespace

void cached_attention(int threads, std::span<float> o, std::span<float> lse, std::span<const float> q,
                      std::span<const float> k, std::span<const float> v, std::span<const CachedRows> runs,
                      std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim, std::int64_t window,
                      float softcap) {
  AttentionShape shape{1, 1, heads, kv_heads, head_dim};
  shape.softcap = softcap;
  check_heads("cached_attention", shape);
  const std::int64_t tokens = static_cast<std::int64_t>(lse.size()) / heads;
  const auto has = [&](const char* name, std::size_t size, std::int64_t columns) {
    require(static_cast<std::int64_t>(size) == tokens * columns,
            "cached_attention: {} has {} elements, {} x {} expected", name, size, tokens, columns);
  };
  has("lse", lse.size(), heads);
  has("o", o.size(), heads * head_dim);
  has("q", q.size(), heads * head_dim);
  has("k", k.size(), kv_heads * head_dim);
  has("v", v.size(), kv_heads * head_dim);
  for (const CachedRows& run : runs) {
    require(run.row >= 0 && run.rows >= 0 && run.row + run.rows <= tokens,
            "cached_attention: rows {} to {} of {} tokens", run.row, run.row + run.rows, tokens);
    require(run.position >= 0 && run.cache->length() >= run.position + run.rows,
            "cached_attention: {} rows go on at {} in a cache that has grown to {}", run.rows, run.position,
            run.cache->length());
    require(run.cache->dtype() == runs.front().cache->dtype(), "cached_attention: caches of {} and of {}",
            name_of(runs.front().cache->dtype()), name_of(run.cache->dtype()));
  }
  std::fill(o.begin(), o.end(), 0.0f);
  std::fill(lse.begin(), lse.end(), 0.0f);
  if (!runs.empty()) {
    with_float_type(runs.front().cache->dtype(),
                    [&](auto type) { attend<decltype(type)>(threads, o, lse, q, k, v, runs, shape, window); });
  }
}

}  // namespace orthant
