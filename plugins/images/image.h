// Image: the pixels of one picture, as a file has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace orthant::images {

struct Image {
  int height = 0, width = 0, channels = 0;  // 1: grey; 3: red, green, blue
  std::vector<std::uint8_t> pixel;          // [height][width][channels]

  std::uint8_t at(int y, int x, int channel) const {
    return pixel[(static_cast<std::size_t>(y) * static_cast<std::size_t>(width) + static_cast<std::size_t>(x)) *
                     static_cast<std::size_t>(channels) +
                 static_cast<std::size_t>(channel)];
  }
};

// Sides of a picture that is read: more is taken for damage.
inline constexpr std::int64_t longest_side = 16384;

}  // namespace orthant::images
