// A rank owns a flat range of a parameter group; a parameter's slice is a rectangle of its global tensor. Pieces are
// the rectangles in which the two meet: at most three for each parameter (part of a row, whole rows, part of a row).
#pragma once

#include <cstdint>
#include <vector>

#include <orthant/param_group.h>

namespace orthant {

struct OwnedPiece {
  std::int64_t offset[2];  // in the global tensor
  std::int64_t size[2];    // rows and columns
  std::int64_t begin;      // first element in the owned range; elements follow row by row
  std::int64_t elements() const { return size[0] * size[1]; }
};

// In order; empty where this rank owns nothing of `param`, a parameter of `group`.
std::vector<OwnedPiece> owned_pieces(const ParamGroup& group, const Param& param);
// The same of elements [first, last) of the group's flat buffers alone.
std::vector<OwnedPiece> owned_pieces(const ParamGroup& group, const Param& param, std::int64_t first,
                                     std::int64_t last);

}  // namespace orthant
