#include "view.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace orthant::images {
namespace {

// A rectangle of an image, in its pixels.
struct Box {
  double x = 0, y = 0, width = 0, height = 0;
  bool mirrored = false;
};

Box middle(const Image& image) {
  const double side = std::min(image.width, image.height);
  return {(image.width - side) / 2, (image.height - side) / 2, side, side};
}

// Szegedy et al., "Going Deeper with Convolutions" (2014), section 6: a rectangle of any area and shape within bounds.
Box drawn_area(const Image& image, double least, const Draws& draws, std::uint64_t& at) {
  const auto between = [&](double low, double high) {
    return low + (high - low) * static_cast<double>(uniform(draws.key, at++));
  };
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double area = between(least, 1) * image.width * image.height;
    const double shape = std::exp(between(std::log(0.75), std::log(4.0 / 3)));
    const double width = std::round(std::sqrt(area * shape)), height = std::round(std::sqrt(area / shape));
    const double x = std::floor(between(0, image.width - width + 1)),
                 y = std::floor(between(0, image.height - height + 1));
    if (width >= 1 && height >= 1 && width <= image.width && height <= image.height) {
      return {x, y, width, height};
    }
  }
  return middle(image);
}

Box box_of(const Image& image, const ViewRule& rule, const std::optional<Draws>& draws) {
  if (!draws.has_value()) {
    return middle(image);
  }
  std::uint64_t at = static_cast<std::uint64_t>(draws->image) * 64;
  const bool mirrored = uniform(draws->key, at++) < 0.5f && rule.flip;
  const auto shift = [&] {
    const std::uint64_t places = static_cast<std::uint64_t>(2 * rule.padding + 1);
    return static_cast<double>(below(draws->key, at++, places)) - rule.padding;
  };
  const double dx = shift(), dy = shift();
  Box box = rule.area < 1 ? drawn_area(image, rule.area, *draws, at) : middle(image);
  box.x += dx;
  box.y += dy;
  box.mirrored = mirrored;
  return box;
}

struct Tap {
  int from = 0;  // a pixel of the image
  float weight = 0;
};

// Of each of `size` pixels along a side: what it is made of. A triangle as wide as two pixels, of whichever are larger.
std::vector<std::vector<Tap>> taps_of(double begin, double length, int size, int pixels) {
  const double step = length / size, reach = std::max(step, 1.0);
  std::vector<std::vector<Tap>> taps(static_cast<std::size_t>(size));
  for (int i = 0; i < size; ++i) {
    const double centre = begin + (i + 0.5) * step;
    double sum = 0;
    std::vector<Tap>& of = taps[static_cast<std::size_t>(i)];
    for (int p = static_cast<int>(std::floor(centre - reach)); p <= static_cast<int>(std::ceil(centre + reach)); ++p) {
      const double weight = 1 - std::abs(p + 0.5 - centre) / reach;
      if (weight <= 0) {
        continue;
      }
      // Beyond the edge lies black where the box is moved over it; a triangle that only leans over it ends there.
      const bool there = p >= 0 && p < pixels, moved_out = centre < 0 || centre > pixels;
      if (there || moved_out) {
        sum += weight;
      }
      if (there) {
        of.push_back({p, static_cast<float>(weight)});
      }
    }
    for (Tap& tap : of) {
      tap.weight = static_cast<float>(static_cast<double>(tap.weight) / sum);
    }
  }
  return taps;
}

float grey(const Image& image, int y, int x) {
  return 0.299f * static_cast<float>(image.at(y, x, 0)) + 0.587f * static_cast<float>(image.at(y, x, 1)) +
         0.114f * static_cast<float>(image.at(y, x, 2));
}

// 0 to 255, of a channel of the model's.
float value_at(const Image& image, int y, int x, int channel, int channels) {
  if (image.channels == channels) {
    return static_cast<float>(image.at(y, x, channel));
  }
  return image.channels == 1 ? static_cast<float>(image.at(y, x, 0)) : grey(image, y, x);
}

}  // namespace

std::vector<float> view_of(const Image& image, const ViewRule& rule, const std::optional<Draws>& draws) {
  const Box box = box_of(image, rule, draws);
  const auto across = taps_of(box.x, box.width, rule.size, image.width);
  const auto down = taps_of(box.y, box.height, rule.size, image.height);
  const std::size_t size = static_cast<std::size_t>(rule.size);
  std::vector<float> view(static_cast<std::size_t>(rule.channels) * size * size);
  for (int channel = 0; channel < rule.channels; ++channel) {
    const std::size_t number = static_cast<std::size_t>(channel);
    const float mean = static_cast<float>(rule.mean[number]), deviation = static_cast<float>(rule.deviation[number]);
    for (std::size_t y = 0; y < size; ++y) {
      for (std::size_t x = 0; x < size; ++x) {
        float sum = 0;
        for (const Tap& row : down[y]) {
          for (const Tap& column : across[x]) {
            sum += row.weight * column.weight * value_at(image, row.from, column.from, channel, rule.channels);
          }
        }
        const std::size_t to = box.mirrored ? size - 1 - x : x;
        view[(number * size + y) * size + to] = (sum / 255 - mean) / deviation;
      }
    }
  }
  return view;
}

}  // namespace orthant::images
