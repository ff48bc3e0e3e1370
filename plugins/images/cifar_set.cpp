#include <algorithm>
#include <utility>

#include "file_bytes.h"
#include "image_set.h"

namespace orthant::images {
namespace {

constexpr std::int64_t cifar_side = 32, cifar_pixels = cifar_side * cifar_side, image_bytes = 3 * cifar_pixels;

class CifarSet final : public ImageSet {
 public:
  CifarSet(const std::string& path, bool hundred)
      : path_(path), bytes_(read_file(path)), labels_(hundred ? 2 : 1), classes_(hundred ? 100 : 10) {
    const std::int64_t held = static_cast<std::int64_t>(bytes_.size());
    if (held == 0 || held % record() != 0) {
      throw ConfigError(
          fmt::format("'{}' has {} bytes, which are no records of CIFAR-{}, of {} each: it is cut short "
                      "or damaged, or is to be unpacked first",
                      path, held, classes_, record()));
    }
    for (std::int64_t i = 0; i < size(); ++i) {
      if (label(i) >= classes_) {
        throw ConfigError(
            fmt::format("'{}': image {} has label {}, expected less than {}: it is damaged, or no file "
                        "of CIFAR-{}",
                        path, i, label(i), classes_, classes_));
      }
    }
  }
  std::string name() const override { return fmt::format("'{}'", path_); }
  std::int64_t size() const override { return static_cast<std::int64_t>(bytes_.size()) / record(); }
  std::int64_t classes() const override { return classes_; }
  // Of two labels the second, the fine one.
  std::int64_t label(std::int64_t i) const override {
    return bytes_[static_cast<std::size_t>(i * record() + labels_ - 1)];
  }
  Image image(std::int64_t i) const override {
    Image image{cifar_side, cifar_side, 3, Bytes(static_cast<std::size_t>(image_bytes))};
    const std::size_t begin = static_cast<std::size_t>(i * record() + labels_);
    for (std::size_t p = 0; p < static_cast<std::size_t>(cifar_pixels); ++p) {
      for (std::size_t c = 0; c < 3; ++c) {
        image.pixel[3 * p + c] = bytes_[begin + c * static_cast<std::size_t>(cifar_pixels) + p];
      }
    }
    return image;
  }

 private:
  std::int64_t record() const { return labels_ + image_bytes; }

  std::string path_;
  Bytes bytes_;
  std::int64_t labels_, classes_;
};

}  // namespace

std::unique_ptr<ImageSet> open_cifar(const std::string& path, bool hundred) {
  return std::make_unique<CifarSet>(path, hundred);
}

}  // namespace orthant::images
