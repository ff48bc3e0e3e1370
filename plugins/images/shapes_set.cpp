#include <orthant/error.h>
#include <orthant/random.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "image_set.h"

namespace orthant::images {
namespace {

// Whether a point is inside of a shape of radius 1 around 0.
using Inside = bool (*)(double x, double y);
constexpr std::array<Inside, 8> shapes = {
    [](double x, double y) { return x * x + y * y < 1; },                         // disc
    [](double x, double y) { return std::max(std::abs(x), std::abs(y)) < 0.8; },  // square
    [](double x, double y) { return y > -0.6 && y < 1 - 1.8 * std::abs(x); },     // triangle
    [](double x, double y) {
      return std::min(std::abs(x), std::abs(y)) < 0.25 && std::max(std::abs(x), std::abs(y)) < 1;
    },                                                                                          // cross
    [](double x, double y) { return x * x + y * y < 1 && x * x + y * y > 0.36; },               // ring
    [](double x, double y) { return std::abs(x) < 1 && std::abs(y) < 0.35; },                   // bar
    [](double x, double y) { return x * x + y * y < 1 && y > 0; },                              // half disc
    [](double x, double y) { return std::abs(std::abs(x) - 0.6) < 0.3 && std::abs(y) < 0.9; },  // two bars
};

class Shapes final : public ImageSet {
 public:
  Shapes(std::int64_t count, std::int64_t size, std::int64_t channels, double noise)
      : count_(count), side_(static_cast<int>(size)), channels_(static_cast<int>(channels)), noise_(noise) {}
  std::string name() const override { return fmt::format("{} drawn shapes", count_); }
  std::int64_t size() const override { return count_; }
  std::int64_t classes() const override { return static_cast<std::int64_t>(shapes.size()); }
  std::int64_t label(std::int64_t i) const override { return i % classes(); }
  // The same whatever the seed of a run is: it is the data.
  Image image(std::int64_t i) const override {
    const RandomKey key{0, Purpose::synthetic, 0x5A9Eu, static_cast<std::uint32_t>(i)};
    std::uint64_t drawn = 0;
    const auto between = [&](double low, double high) {
      return low + (high - low) * static_cast<double>(uniform(key, drawn++));
    };
    const double radius = between(0.3, 0.6), angle = between(-0.6, 0.6);
    const double x0 = between(radius - 1, 1 - radius), y0 = between(radius - 1, 1 - radius);
    const double c = std::cos(angle) / radius, s = std::sin(angle) / radius;
    std::array<double, 3> ground{}, ink{};
    const double brightness = between(0, 1);
    for (std::size_t channel = 0; channel < 3; ++channel) {
      ground[channel] = between(0, 0.4) + (brightness > 0.5 ? 0.6 : 0);
      ink[channel] = between(0, 0.4) + (brightness > 0.5 ? 0 : 0.6);
    }
    const Inside inside = shapes[static_cast<std::size_t>(label(i))];
    Image image{side_, side_, channels_, {}};
    image.pixel.reserve(static_cast<std::size_t>(side_ * side_ * channels_));
    for (int y = 0; y < side_; ++y) {
      for (int x = 0; x < side_; ++x) {
        double covered = 0;  // of four points of the pixel
        for (int p = 0; p < 4; ++p) {
          const double u = 2 * (x + 0.25 + 0.5 * (p % 2)) / side_ - 1 - x0,
                       v = 1 - 2 * (y + 0.25 + 0.5 * (p / 2)) / side_ - y0;
          covered += inside(c * u + s * v, c * v - s * u) ? 0.25 : 0;
        }
        for (int channel = 0; channel < channels_; ++channel) {
          const std::size_t of = static_cast<std::size_t>(channel);
          const double value = ground[of] + (ink[of] - ground[of]) * covered + between(-noise_, noise_);
          image.pixel.push_back(static_cast<std::uint8_t>(std::clamp(value, 0.0, 1.0) * 255 + 0.5));
        }
      }
    }
    return image;
  }

 private:
  std::int64_t count_;
  int side_, channels_;
  double noise_;
};

}  // namespace

std::unique_ptr<ImageSet> draw_shapes(std::int64_t count, std::int64_t size, std::int64_t channels, double noise) {
  return std::make_unique<Shapes>(count, size, channels, noise);
}

}  // namespace orthant::images
