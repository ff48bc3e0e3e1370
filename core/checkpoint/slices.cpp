#include "core/checkpoint/slices.h"

#include <fmt/ranges.h>
#include <orthant/error.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace orthant {
namespace {

std::int64_t end_of(const Box& box, std::size_t i) {
  return box.offset[i] + box.size[i];
}

}  // namespace

std::int64_t Box::elements() const {
  std::int64_t n = 1;
  for (const std::int64_t s : size) {
    n *= s;
  }
  return n;
}

Box whole(const Shape& shape) {
  Box box;
  for (int i = 0; i < shape.rank(); ++i) {
    box.offset.push_back(0);
    box.size.push_back(shape[i]);
  }
  return box;
}

void check_inside(const Box& box, const Shape& shape, const std::string& where) {
  const std::size_t rank = static_cast<std::size_t>(shape.rank());
  require(box.offset.size() == rank && box.size.size() == rank, "{}: a slice of {} offsets and {} sizes for shape {}",
          where, box.offset.size(), box.size.size(), shape);
  for (std::size_t i = 0; i < rank; ++i) {
    const std::int64_t most = shape[static_cast<int>(i)];
    require(box.size[i] >= 0 && box.size[i] <= most && box.offset[i] >= 0 && box.offset[i] <= most - box.size[i],
            "{}: the slice at [{}] of size [{}] does not lie inside {}", where, fmt::join(box.offset, ", "),
            fmt::join(box.size, ", "), shape);
  }
}

Box intersect(const Box& a, const Box& b) {
  Box both;
  for (std::size_t i = 0; i < a.offset.size(); ++i) {
    const std::int64_t begin = std::max(a.offset[i], b.offset[i]);
    both.offset.push_back(begin);
    both.size.push_back(std::max<std::int64_t>(0, std::min(end_of(a, i), end_of(b, i)) - begin));
  }
  return both;
}

void check_cover(const Shape& shape, std::vector<Box> boxes, const std::string& where) {
  std::erase_if(boxes, [](const Box& box) { return box.elements() == 0; });
  std::sort(boxes.begin(), boxes.end(), [](const Box& a, const Box& b) { return a.offset < b.offset; });
  std::int64_t covered = 0;
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    for (std::size_t j = i + 1; j < boxes.size(); ++j) {
      if (shape.rank() > 0 && boxes[j].offset[0] >= end_of(boxes[i], 0)) {
        break;  // sorted: no later one overlaps either
      }
      require(intersect(boxes[i], boxes[j]).elements() == 0, "{}: two slices overlap, those at [{}] and [{}]", where,
              fmt::join(boxes[i].offset, ", "), fmt::join(boxes[j].offset, ", "));
    }
    covered += boxes[i].elements();  // disjoint so far, hence no more than the shape has
  }
  require(covered == shape.elements(), "{}: its slices hold {} of {} elements of shape {}", where, covered,
          shape.elements(), shape);
}

void copy_overlap(std::span<const std::byte> from, const Box& from_box, void* to, const Box& to_box,
                  std::size_t element_bytes) {
  const Box both = intersect(from_box, to_box);
  if (both.elements() == 0) {
    return;
  }
  const std::size_t rank = both.size.size();
  if (rank == 0) {
    std::memcpy(to, from.data(), element_bytes);
    return;
  }
  const std::size_t run = static_cast<std::size_t>(both.size[rank - 1]) * element_bytes;
  const auto place = [&](const Box& box, const std::vector<std::int64_t>& index) {
    std::int64_t at = 0;
    for (std::size_t i = 0; i < rank; ++i) {
      at = at * box.size[i] + index[i] - box.offset[i];
    }
    return static_cast<std::size_t>(at) * element_bytes;
  };
  std::vector<std::int64_t> index = both.offset;
  for (bool more = true; more;) {
    std::memcpy(static_cast<std::byte*>(to) + place(to_box, index), from.data() + place(from_box, index), run);
    more = false;
    for (std::size_t i = rank - 1; i-- > 0;) {  // the next row: an odometer over all dimensions but the last
      if (++index[i] < end_of(both, i)) {
        more = true;
        break;
      }
      index[i] = both.offset[i];
    }
  }
}

Shape checked_shape(const std::vector<std::int64_t>& sizes, const std::string& where) {
  require(sizes.size() <= Shape::max_rank, "{}: {} dimensions, expected at most {}", where, sizes.size(),
          Shape::max_rank);
  Shape shape;
  std::int64_t bytes = size_of(DType::f64);
  for (const std::int64_t s : sizes) {
    require(s >= 0 && (s == 0 || bytes <= std::numeric_limits<std::int64_t>::max() / s), "{}: impossible shape [{}]",
            where, fmt::join(sizes, ", "));
    bytes *= s;
    shape.push_back(s);
  }
  return shape;
}

}  // namespace orthant
