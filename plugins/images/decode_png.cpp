#include "decode.h"

#ifdef ORTHANT_HAVE_PNG
#include <png.h>
#endif

namespace orthant::images {

#ifdef ORTHANT_HAVE_PNG

Image decode_png(const Bytes& bytes, const std::string& path) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  const auto refuse = [&] {
    const std::string why = png.message;
    png_image_free(&png);
    fail("'{}' is damaged: {}", path, why);
  };
  if (png_image_begin_read_from_memory(&png, bytes.data(), bytes.size()) == 0) {
    refuse();
  }
  if (png.width > longest_side || png.height > longest_side) {
    png_image_free(&png);
    fail("'{}' has {} x {} pixels, at most {} a side are read", path, png.width, png.height, longest_side);
  }
  const bool colours = (png.format & PNG_FORMAT_FLAG_COLOR) != 0;
  png.format = colours ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
  Image image{static_cast<int>(png.height), static_cast<int>(png.width), colours ? 3 : 1, {}};
  image.pixel.resize(PNG_IMAGE_SIZE(png));
  const png_color black{};  // behind what is transparent
  if (png_image_finish_read(&png, &black, image.pixel.data(), 0, nullptr) == 0) {
    refuse();
  }
  return image;
}

#else

Image decode_png(const Bytes&, const std::string& path) {
  fail("'{}' is a PNG file, and this build is without libpng: install libpng-dev and build again", path);
}

#endif

}  // namespace orthant::images
