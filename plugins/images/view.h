// What a model is shown of an image: a square of it in the model's size, cropped, mirrored and normalised.
#pragma once

#include <optional>
#include <vector>

#include <orthant/random.h>

#include "image.h"

namespace orthant::images {

struct ViewRule {
  int size = 0, channels = 0;
  int padding = 0;    // in training the square is moved by up to so many pixels, over black
  double area = 1;    // in training it has this share of the image at least, and sides of 3 : 4 to 4 : 3
  bool flip = false;  // in training half of the images are mirrored
  std::vector<double> mean, deviation;  // of each channel, 0: black, 1: white
};

// Who draws where a training image is cropped: key is of seed and epoch, image its number.
struct Draws {
  RandomKey key;
  std::int64_t image = 0;
};

// [channels][size][size]. Without draws: the square in the middle.
std::vector<float> view_of(const Image& image, const ViewRule& rule, const std::optional<Draws>& draws);

}  // namespace orthant::images
