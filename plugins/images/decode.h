// PNG and JPEG files as images, by libpng and libjpeg-turbo, where the build has found them.
#pragma once

#include <string>

#include "file_bytes.h"
#include "image.h"

namespace orthant::images {

// Errors: Error naming the file: what is damaged in it, or the library that this build is without.
Image decode_png(const Bytes& bytes, const std::string& path);
Image decode_jpeg(const Bytes& bytes, const std::string& path);

// By the first bytes of the file.
Image decode(const std::string& path);

}  // namespace orthant::images
