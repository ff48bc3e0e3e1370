// What queries see of keys: ranges of a task's keys, and of the keys of a tile.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/device/cpu/tile.h"

namespace orthant::attention_tiles {

inline constexpr std::int64_t side = 64;  // of a tile
static_assert(side % tile::row_step == 0 && side % tile::lanes == 0);

// The keys [begin, end) that a query sees, counted in ascending order of their place.
struct KeyRange {
  std::int64_t begin, end;
};

// What a task's queries see. range: one per query; order: the row of each key in ascending order of place, or null
// where the keys lie so.
struct Visible {
  const KeyRange* range;
  const std::int32_t* order;
  // From the first tile with a key that any of these queries sees to the last such key.
  KeyRange span(std::int64_t i0, std::int64_t rows) const {
    KeyRange all{std::numeric_limits<std::int64_t>::max(), 0};
    for (std::int64_t i = i0; i < i0 + rows; ++i) {
      if (range[i].begin < range[i].end) {
        all = {std::min(all.begin, range[i].begin), std::max(all.end, range[i].end)};
      }
    }
    return {all.begin / side * side, all.end};
  }
  // Whether any of these queries sees any of the keys [j0, j0 + side).
  bool meets(std::int64_t i0, std::int64_t rows, std::int64_t j0) const {
    return std::any_of(range + i0, range + i0 + rows,
                       [&](const KeyRange& r) { return std::max(r.begin, j0) < std::min(r.end, j0 + side); });
  }
};

// What the queries of a tile see of a tile of keys: [begin, end) of each, counted from the tile's first key. Scores are
// made for `group` queries at a time, sums over keys or queries for tile::row_step rows, of those only that some of
// them see: half of a tile on the diagonal.
class TileView {
 public:
  static constexpr std::int64_t group = 16;
  // Queries [i0, i0 + rows), keys [j0, j0 + keys). Rows of padding see nothing.
  TileView(const Visible& visible, std::int64_t i0, std::int64_t rows, std::int64_t j0, std::int64_t keys) {
    for (std::int64_t r = 0; r < rows; ++r) {
      const KeyRange seen = visible.range[i0 + r];
      const std::int64_t end = std::clamp<std::int64_t>(seen.end - j0, 0, keys);
      row_[r] = {std::clamp<std::int64_t>(seen.begin - j0, 0, end), end};
    }
    std::fill(row_ + rows, row_ + side, KeyRange{0, 0});
  }
  const KeyRange& operator[](std::int64_t r) const { return row_[r]; }
  // The end of the keys that `rows` queries from r on see.
  std::int64_t keys_of(std::int64_t r, std::int64_t rows) const {
    std::int64_t end = 0;
    for (std::int64_t i = r; i < r + rows; ++i) {
      end = std::max(end, row_[i].begin < row_[i].end ? row_[i].end : 0);
    }
    return end;
  }
  // From the first to the last of `rows` queries that sees any of `keys` keys from j on.
  KeyRange queries_of(std::int64_t j, std::int64_t keys, std::int64_t rows) const {
    std::int64_t first = 0, last = rows;
    const auto sees = [&](const KeyRange& k) { return std::max(k.begin, j) < std::min(k.end, j + keys); };
    while (first < last && !sees(row_[first])) {
      ++first;
    }
    while (first < last && !sees(row_[last - 1])) {
      --last;
    }
    return {first, last};
  }

 private:
  KeyRange row_[side];
};

}  // namespace orthant::attention_tiles
