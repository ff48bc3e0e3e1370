#include <algorithm>
#include <utility>

#include "file_bytes.h"
#include "image_set.h"

namespace orthant::images {
namespace {

constexpr std::uint8_t unsigned_bytes = 0x08;  // the type of MNIST's elements

std::int64_t big_endian(const Bytes& bytes, std::size_t at) {
  std::int64_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    value = value * 256 + bytes[at + i];
  }
  return value;
}

struct IdxFile {
  std::vector<std::int64_t> size;
  Bytes bytes;
  std::size_t begin = 0;  // of the elements
};

IdxFile read_idx(const std::string& path) {
  IdxFile file{.size = {}, .bytes = read_file(path)};
  const auto refuse = [&](const std::string& why) {
    throw ConfigError(fmt::format("'{}' is no IDX file of bytes: {}", path, why));
  };
  const Bytes& bytes = file.bytes;
  if (bytes.size() < 4 || bytes[0] != 0 || bytes[1] != 0) {
    refuse("it does not begin with two zeros; one that is compressed is to be unpacked first");
  }
  if (bytes[2] != unsigned_bytes) {
    refuse(fmt::format("its elements have type 0x{:02x}, expected 0x08", bytes[2]));
  }
  const std::size_t dimensions = bytes[3];
  file.begin = 4 + 4 * dimensions;
  if (dimensions < 1 || dimensions > 4 || bytes.size() < file.begin) {
    refuse(fmt::format("it has {} dimensions in {} bytes, expected 1 to 4", dimensions, bytes.size()));
  }
  std::int64_t elements = 1;
  for (std::size_t d = 0; d < dimensions; ++d) {
    file.size.push_back(big_endian(bytes, 4 + 4 * d));
    const std::int64_t most = static_cast<std::int64_t>(bytes.size());
    elements = file.size.back() == 0 ? 0 : elements > most / file.size.back() ? most + 1 : elements * file.size.back();
  }
  const std::int64_t held = static_cast<std::int64_t>(bytes.size() - file.begin);
  if (elements != held) {
    refuse(fmt::format("its header announces {} = {} elements, and {} bytes follow: it is cut short or damaged",
                       fmt::join(file.size, " x "),
                       elements > static_cast<std::int64_t>(bytes.size()) ? "more" : std::to_string(elements), held));
  }
  return file;
}

class IdxSet final : public ImageSet {
 public:
  IdxSet(std::string name, IdxFile images, IdxFile labels)
      : name_(std::move(name)), images_(std::move(images)), labels_(std::move(labels)) {
    classes_ = 1 + std::int64_t{*std::max_element(first_label(), labels_.bytes.cend())};
    height_ = static_cast<int>(images_.size[1]);
    width_ = static_cast<int>(images_.size[2]);
    channels_ = images_.size.size() == 4 ? static_cast<int>(images_.size[3]) : 1;
  }
  std::string name() const override { return name_; }
  std::int64_t size() const override { return images_.size[0]; }
  std::int64_t classes() const override { return classes_; }
  std::int64_t label(std::int64_t i) const override { return first_label()[i]; }
  Image image(std::int64_t i) const override {
    const std::int64_t pixels = std::int64_t{height_} * width_ * channels_;
    const auto begin = images_.bytes.begin() + static_cast<std::ptrdiff_t>(images_.begin) + i * pixels;
    return {height_, width_, channels_, Bytes(begin, begin + pixels)};
  }

 private:
  Bytes::const_iterator first_label() const {
    return labels_.bytes.begin() + static_cast<std::ptrdiff_t>(labels_.begin);
  }

  std::string name_;
  IdxFile images_, labels_;
  std::int64_t classes_ = 0;
  int height_ = 0, width_ = 0, channels_ = 0;
};

}  // namespace

int idx_dimensions(const std::string& path) {
  const Bytes head = read_beginning(path, 4);
  return head.size() == 4 && head[0] == 0 && head[1] == 0 && head[2] == unsigned_bytes ? head[3] : 0;
}

std::unique_ptr<ImageSet> open_idx(const std::string& images, const std::string& labels) {
  IdxFile of_images = read_idx(images), of_labels = read_idx(labels);
  const std::vector<std::int64_t>& size = of_images.size;
  const bool sound = size.size() >= 3 && size[0] > 0 && size[1] > 0 && size[2] > 0 && size[1] <= longest_side &&
                     size[2] <= longest_side && (size.size() == 3 || size[3] == 1 || size[3] == 3);
  if (!sound) {
    throw ConfigError(
        fmt::format("'{}' has {} elements: expected images [n, height, width], or [n, height, width, 1 or 3]", images,
                    fmt::join(size, " x ")));
  }
  if (of_labels.size != std::vector<std::int64_t>{size[0]}) {
    throw ConfigError(fmt::format("'{}' has {} elements: expected a label for each of the {} images of '{}'", labels,
                                  fmt::join(of_labels.size, " x "), size[0], images));
  }
  return std::make_unique<IdxSet>(fmt::format("'{}'", images), std::move(of_images), std::move(of_labels));
}

}  // namespace orthant::images
