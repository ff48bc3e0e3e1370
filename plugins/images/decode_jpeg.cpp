#include "decode.h"

#ifdef ORTHANT_HAVE_JPEG
#include <cstdio>  // jpeglib.h does not include it

#include <jerror.h>
#include <jpeglib.h>
#include <csetjmp>
#endif

namespace orthant::images {

#ifdef ORTHANT_HAVE_JPEG
namespace {

// libjpeg reports by calls that do not return.
struct Failure {
  jpeg_error_mgr manager;  // first: libjpeg knows this part alone
  std::jmp_buf back;
  char why[JMSG_LENGTH_MAX];
};

[[noreturn]] void leave_jpeg(j_common_ptr info) {
  Failure& failure = *reinterpret_cast<Failure*>(info->err);
  failure.manager.format_message(info, failure.why);
  std::longjmp(failure.back, 1);
}

// libjpeg fills up what is missing and warns. Bytes between markers harm nothing; anything else is damage.
void warn_jpeg(j_common_ptr info, int level) {
  const int code = info->err->msg_code;
  if (level < 0 && code != JWRN_EXTRANEOUS_DATA && code != JWRN_ADOBE_XFORM && code != JWRN_JFIF_MAJOR) {
    leave_jpeg(info);
  }
}

// Between the two calls nothing has a destructor, as longjmp runs none.
bool read_header(jpeg_decompress_struct& jpeg, Failure& failure, const Bytes& bytes) {
  if (setjmp(failure.back) != 0) {
    return false;
  }
  jpeg_create_decompress(&jpeg);
  jpeg_mem_src(&jpeg, bytes.data(), static_cast<unsigned long>(bytes.size()));
  jpeg_read_header(&jpeg, TRUE);
  jpeg.out_color_space = jpeg.num_components == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg.dct_method = JDCT_ISLOW;
  return true;
}

bool read_rows(jpeg_decompress_struct& jpeg, Failure& failure, std::uint8_t* pixel, std::size_t stride) {
  if (setjmp(failure.back) != 0) {
    return false;
  }
  jpeg_start_decompress(&jpeg);
  while (jpeg.output_scanline < jpeg.output_height) {
    JSAMPROW row = pixel + stride * jpeg.output_scanline;
    jpeg_read_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_decompress(&jpeg);
  return true;
}

// Frees what libjpeg holds, however it ends.
struct Decoder {
  Decoder() {
    jpeg.err = jpeg_std_error(&failure.manager);
    failure.manager.error_exit = leave_jpeg;
    failure.manager.emit_message = warn_jpeg;
  }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  ~Decoder() { jpeg_destroy_decompress(&jpeg); }
  jpeg_decompress_struct jpeg{};
  Failure failure{};
};

}  // namespace

Image decode_jpeg(const Bytes& bytes, const std::string& path) {
  Decoder decoder;
  const auto refuse = [&] { fail("'{}' is damaged: {}", path, decoder.failure.why); };
  if (!read_header(decoder.jpeg, decoder.failure, bytes)) {
    refuse();
  }
  const jpeg_decompress_struct& jpeg = decoder.jpeg;
  require(jpeg.image_width <= longest_side && jpeg.image_height <= longest_side,
          "'{}' has {} x {} pixels, at most {} a side are read", path, jpeg.image_width, jpeg.image_height,
          longest_side);
  Image image{
      static_cast<int>(jpeg.image_height), static_cast<int>(jpeg.image_width), jpeg.num_components == 1 ? 1 : 3, {}};
  const std::size_t stride = static_cast<std::size_t>(image.width) * static_cast<std::size_t>(image.channels);
  image.pixel.resize(stride * static_cast<std::size_t>(image.height));
  if (!read_rows(decoder.jpeg, decoder.failure, image.pixel.data(), stride)) {
    refuse();
  }
  return image;
}

#else

Image decode_jpeg(const Bytes&, const std::string& path) {
  fail("'{}' is a JPEG file, and this build is without libjpeg-turbo: install libjpeg-dev and build again", path);
}

#endif

}  // namespace orthant::images
