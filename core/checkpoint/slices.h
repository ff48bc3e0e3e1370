// Slices: boxes of a tensor's global index space, as ranks hold them.
#pragma once

#include <orthant/tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace orthant {

// A box: `size[i]` indices from `offset[i]` on in each dimension. Both have as many entries as the tensor dimensions;
// none for a scalar.
struct Box {
  std::vector<std::int64_t> offset;
  std::vector<std::int64_t> size;
  std::int64_t elements() const;
};

// Box with `shape`'s size at its origin.
Box whole(const Shape& shape);
// Errors: Error, beginning with `where`, unless `box` has shape's rank and lies inside of it.
void check_inside(const Box& box, const Shape& shape, const std::string& where);
// What both hold; of zero elements when they are disjoint. REQUIRES: equal ranks.
Box intersect(const Box& a, const Box& b);
// Errors: Error, beginning with `where`, unless the boxes hold every element of `shape` exactly once.
// REQUIRES: each box lies inside. O(n log n) where dimension 0 is split, O(n^2) else.
void check_cover(const Shape& shape, std::vector<Box> boxes, const std::string& where);
// Copies what both boxes hold. `from` and `to` are contiguous, row-major, of the boxes' sizes.
void copy_overlap(std::span<const std::byte> from, const Box& from_box, void* to, const Box& to_box,
                  std::size_t element_bytes);

// A Shape from numbers of outside. Errors: Error, beginning with `where`, for more dimensions than a Shape has, a
// negative size, or more bytes (of f64) than 63 bits count.
Shape checked_shape(const std::vector<std::int64_t>& sizes, const std::string& where);

}  // namespace orthant
