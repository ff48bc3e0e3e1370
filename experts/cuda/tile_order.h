// In which order the tiles of a product are worked on. Host and device alike.
#pragma once

#include <orthant/random.h>

#include <cstdint>

namespace orthant::cuda {

// How many parts of this size cover it.
ORTHANT_HOST_DEVICE inline std::int64_t parts(std::int64_t size, std::int64_t part) {
  return (size + part - 1) / part;
}

// Tile `number` of a product of down x across tiles. Tiles that run at the same time should share operands: bands of 16
// rows of tiles, column by column.
struct TilePlace {
  int row, column;
};

ORTHANT_HOST_DEVICE inline TilePlace tile_place(int number, int down, int across) {
  constexpr int band_rows = 16;
  const int band = number / (band_rows * across), inside = number - band * band_rows * across;
  const int left = down - band * band_rows, high = left < band_rows ? left : band_rows;
  return {band * band_rows + inside % high, inside / high};
}

}  // namespace orthant::cuda
