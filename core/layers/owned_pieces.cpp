#include "core/layers/owned_pieces.h"

#include <algorithm>

namespace orthant {

std::vector<OwnedPiece> owned_pieces(const ParamGroup& group, const Param& p) {
  return owned_pieces(group, p, 0, group.padded);
}

std::vector<OwnedPiece> owned_pieces(const ParamGroup& group, const Param& p, std::int64_t first, std::int64_t last) {
  std::vector<OwnedPiece> pieces;
  const std::int64_t columns = p.size[1];
  // Elements [at, end) of the slice, counted row by row.
  std::int64_t at = std::max({group.owned_begin, first, p.begin}) - p.begin;
  const std::int64_t end = std::min({group.owned_begin + group.owned_elements, last, p.begin + p.elements()}) - p.begin;
  while (at < end) {
    const std::int64_t row = at / columns, column = at % columns;
    const bool from_start = column == 0 && end - at >= columns;
    const std::int64_t rows = from_start ? (end - at) / columns : 1;
    const std::int64_t width = from_start ? columns : std::min(columns - column, end - at);
    pieces.push_back({.offset = {p.offset[0] + row, p.offset[1] + column},
                      .size = {rows, width},
                      .begin = p.begin + at - group.owned_begin});
    at += rows * width;
  }
  return pieces;
}

}  // namespace orthant
