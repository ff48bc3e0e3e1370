// Sources "images" and "shapes": an image is a sequence, and each of its patches a token that brings its pixels.
//
// What an image shows depends on run.seed, its number in the data and the epoch, and on nothing else. What is held out
// depends on the data alone: runs with several seeds are measured on the same images.
#pragma once

#include <memory>

#include <orthant/source.h>

namespace orthant::images {

std::shared_ptr<const Source> make_image_source();
std::shared_ptr<const Source> make_shape_source();

}  // namespace orthant::images
