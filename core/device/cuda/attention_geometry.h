// Which keys a query sees, tile by tile, and where the heads of a call lie: what the kernels of attention share,
// whatever they compute with.
#pragma once

#include <orthant/ops.h>

#include <climits>
#include <cmath>

#include "core/device/cuda/attention_plain.h"
#include "core/device/cuda/device_math.h"

namespace orthant::cuda::attention_geometry {

inline constexpr int most_channels = 256;

// What the tiles of a call share. Rows of q and k follow one another in the sequence's order, or lie anywhere, where
// positions are given.
struct Geometry {
  std::int64_t batch, queries, keys, heads, kv_heads;  // queries, keys: of each sequence
  const std::int32_t* q_position;                      // [queries]; null: query i has place i
  const std::int32_t* k_position;                      // [keys]; null: key j has place j
  const std::int32_t* first;                           // [batch * queries]; null: 0
  const std::int32_t* last;                            // likewise; null: a query's own place
  int c;                                               // channels of a head
  float scale;
  bool vectors;  // rows of all tensors may be moved in steps of 16 bytes
  __host__ __device__ std::int64_t q_stride() const { return heads * c; }
  __host__ __device__ std::int64_t kv_stride() const { return kv_heads * c; }
};

// Places that a query sees: [low, high], none where low is above. Beyond the sequence's end: none.
struct Sight {
  std::int32_t low, high;
};
inline constexpr std::int32_t no_place = INT_MIN;  // of a key beyond the sequence's end: nobody sees it

__device__ inline Sight sight_of(const Geometry& g, std::int64_t sequence, std::int64_t i) {
  if (i >= g.queries) {
    return {INT_MAX, INT_MIN};
  }
  const std::int64_t row = sequence * g.queries + i;
  return {g.first == nullptr ? 0 : g.first[row], g.last != nullptr         ? g.last[row]
                                                 : g.q_position == nullptr ? static_cast<std::int32_t>(i)
                                                                           : g.q_position[i]};
}
__device__ inline std::int32_t place_of(const Geometry& g, std::int64_t j) {
  return j >= g.keys ? no_place : g.k_position == nullptr ? static_cast<std::int32_t>(j) : g.k_position[j];
}
__device__ inline bool sees(const Sight& query, std::int32_t place) {
  return place != no_place && query.low <= place && place <= query.high;
}

__device__ inline std::int32_t warp_least(std::int32_t x) {
  return -1 - warp_max<std::int32_t>(-1 - x);  // -1 - x turns the order round and cannot overflow
}
// Of queries i0 .. i0 + count - 1, the first of which exists: any of them sees places of the Sight given back alone.
// All lanes of the warp call.
__device__ inline Sight sight_of_tile(const Geometry& g, std::int64_t sequence, std::int64_t i0, int count) {
  const std::int64_t end = i0 + count < g.queries ? i0 + count : g.queries;
  if (g.first == nullptr && g.q_position == nullptr) {
    return {0, static_cast<std::int32_t>(end - 1)};
  }
  Sight all{INT_MAX, INT_MIN};
  for (std::int64_t i = i0 + lane(); i < end; i += warp_threads) {
    const Sight one = sight_of(g, sequence, i);
    all = {one.low < all.low ? one.low : all.low, one.high > all.high ? one.high : all.high};
  }
  return {warp_least(all.low), warp_max(all.high)};
}
// Likewise: each of them sees all places of the Sight. Empty where one of them lies beyond the sequence's end.
__device__ inline Sight common_sight_of_tile(const Geometry& g, std::int64_t sequence, std::int64_t i0, int count) {
  if (i0 + count > g.queries) {
    return {INT_MAX, INT_MIN};
  }
  if (g.first == nullptr && g.q_position == nullptr) {
    return {0, static_cast<std::int32_t>(i0)};
  }
  Sight all{INT_MIN, INT_MAX};
  for (int r = lane(); r < count; r += warp_threads) {
    const Sight one = sight_of(g, sequence, i0 + r);
    all = {one.low > all.low ? one.low : all.low, one.high < all.high ? one.high : all.high};
  }
  return {warp_max(all.low), warp_least(all.high)};
}
// Lowest and highest place of keys j0 .. j0 + count - 1, the first of which exists. All lanes of the warp call.
__device__ inline Sight places_of_tile(const Geometry& g, std::int64_t j0, int count) {
  const int there = j0 + count <= g.keys ? count : static_cast<int>(g.keys - j0);
  if (g.k_position == nullptr) {
    return {static_cast<std::int32_t>(j0), static_cast<std::int32_t>(j0 + there - 1)};
  }
  Sight all{INT_MAX, INT_MIN};
  for (int r = lane(); r < there; r += warp_threads) {
    const std::int32_t place = g.k_position[j0 + r];
    all = {place < all.low ? place : all.low, place > all.high ? place : all.high};
  }
  return {warp_least(all.low), warp_max(all.high)};
}
// Whether keys are seen by no query before them.
__device__ inline bool causal_in_order(const Geometry& g) {
  return g.q_position == nullptr && g.k_position == nullptr && g.last == nullptr;
}
// Whether a query of a tile may see a key of another.
__device__ inline bool meet(const Sight& queries, const Sight& keys) {
  return keys.low <= queries.high && queries.low <= keys.high;
}

// Of the keys of a sequence, those before `begin` and from `end` on are seen by no query of a tile.
struct KeyRange {
  std::int64_t begin, end;
};
// seen: what any query of the tile sees. begin is a multiple of `tile`.
__device__ inline KeyRange keys_of(const Geometry& g, const Sight& seen, int tile) {
  if (g.k_position != nullptr) {
    return {0, g.keys};
  }
  return {seen.low > 0 ? seen.low / tile * tile : 0, seen.high < g.keys ? seen.high + std::int64_t{1} : g.keys};
}

// The queries and the head of a block that has a tile of queries.
struct QueryTile {
  std::int64_t head, sequence;  // head: among those of all sequences
  std::int64_t i0;              // the first query, in its sequence
  std::int64_t q_at, kv_at;     // where the tile begins in q, its sequence's keys in k
};
// Those at the end of a causal sequence have the most to do: they come first.
__device__ inline QueryTile query_tile(const Geometry& g, int tile) {
  const std::int64_t heads = g.batch * g.heads, tiles = (g.queries + tile - 1) / tile;
  const std::int64_t head = blockIdx.x % heads, i0 = (tiles - 1 - blockIdx.x / heads) * tile;
  const std::int64_t sequence = head / g.heads, h = head % g.heads, kv = h / (g.heads / g.kv_heads);
  return {head, sequence, i0, (sequence * g.queries + i0) * g.q_stride() + h * g.c,
          sequence * g.keys * g.kv_stride() + kv * g.c};
}

// `tensors`: all that are moved by heads.
inline Geometry geometry(const AttentionShape& s, const SeenKeys& seen, std::initializer_list<Tensor> tensors) {
  require(s.head_dim <= most_channels, "attention: heads of {} channels, the device has kernels for up to {}",
          s.head_dim, most_channels);
  const auto places = [](const Tensor& t) { return t.defined() ? t.as<std::int32_t>() : nullptr; };
  bool vectors = true;
  for (const Tensor& t : tensors) {
    vectors = vectors && reinterpret_cast<std::uintptr_t>(t.data()) % 16 == 0 &&
              s.head_dim * static_cast<std::int64_t>(size_of(t.dtype())) % 16 == 0;
  }
  return {s.batch,
          s.positions,
          s.kv_positions == 0 ? s.positions : s.kv_positions,
          s.heads,
          s.kv_heads,
          places(seen.q_position),
          places(seen.k_position),
          places(seen.first),
          seen.first.defined() && seen.first.rank() == 2 ? places(seen.first) + s.batch * s.positions : nullptr,
          static_cast<int>(s.head_dim),
          1.0f / std::sqrt(static_cast<float>(s.head_dim)),
          vectors};
}

// One block of `threads` for every tile of every head.
inline Grid tiles(std::int64_t heads, std::int64_t rows_of_head, int of_tile, int threads, SharedBytes shared,
                  std::source_location where = std::source_location::current()) {
  const std::int64_t blocks = heads * ((rows_of_head + of_tile - 1) / of_tile);
  require(blocks <= INT_MAX, "attention: {} heads of {} rows are more than one launch can have", heads, rows_of_head);
  return {static_cast<unsigned>(blocks), threads, shared, where};
}

}  // namespace orthant::cuda::attention_geometry
