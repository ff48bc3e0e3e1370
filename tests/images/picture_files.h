// Files of images that tests write.
#pragma once

#include <gtest/gtest.h>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>

#include "plugins/images/decode.h"

#if defined(ORTHANT_HAVE_PNG) && defined(ORTHANT_HAVE_JPEG)
#define ORTHANT_TEST_PICTURES 1
#include <jpeglib.h>
#include <png.h>
#endif

namespace orthant::test::images_test {

using images::Bytes;

inline void write(const std::string& path, const Bytes& bytes) {
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

inline Bytes idx(std::initializer_list<std::int64_t> sizes, const Bytes& elements) {
  Bytes bytes = {0, 0, 8, static_cast<std::uint8_t>(sizes.size())};
  for (const std::int64_t size : sizes) {
    for (int shift = 24; shift >= 0; shift -= 8) {
      bytes.push_back(static_cast<std::uint8_t>(size >> shift));
    }
  }
  bytes.insert(bytes.end(), elements.begin(), elements.end());
  return bytes;
}

// Smooth, so that JPEG keeps it.
inline int pixel_of(int y, int x, int channel) {
  return 40 + 5 * y + 3 * x + 10 * channel;
}

inline Bytes pixels(int height, int width, int channels) {
  Bytes all;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < channels; ++c) {
        all.push_back(static_cast<std::uint8_t>(pixel_of(y, x, c)));
      }
    }
  }
  return all;
}

#ifdef ORTHANT_TEST_PICTURES
inline constexpr bool decodes_pictures = true;

inline void write_png(const std::string& path, int channels) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.width = 24;
  png.height = 20;
  png.format = channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
  ASSERT_NE(png_image_write_to_file(&png, path.c_str(), 0, pixels(20, 24, channels).data(), 0, nullptr), 0);
}

inline void write_jpeg(const std::string& path, int channels) {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* to = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&jpeg, &to, &size);
  jpeg.image_width = 24;
  jpeg.image_height = 20;
  jpeg.input_components = channels;
  jpeg.in_color_space = channels == 3 ? JCS_RGB : JCS_GRAYSCALE;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, 98, TRUE);
  jpeg_start_compress(&jpeg, TRUE);
  Bytes all = pixels(20, 24, channels);
  for (int y = 0; y < 20; ++y) {
    JSAMPROW row = all.data() + y * 24 * channels;
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  write(path, Bytes(to, to + size));
  std::free(to);
}
#else
inline constexpr bool decodes_pictures = false;

inline void write_png(const std::string& path, int) {
  write(path, {0x89, 'P', 'N', 'G'});
}
inline void write_jpeg(const std::string& path, int) {
  write(path, {0xFF, 0xD8});
}
#endif

// Two classes of a PNG and a JPEG each: `a` in colours, `b` in grey.
inline void write_pictures(const std::string& folder) {
  for (const auto& [name, channels] : {std::pair("a", 3), std::pair("b", 1)}) {
    std::filesystem::create_directories(folder + "/" + name);
    write_png(fmt::format("{}/{}/0.png", folder, name), channels);
    write_jpeg(fmt::format("{}/{}/1.jpg", folder, name), channels);
  }
}

}  // namespace orthant::test::images_test
