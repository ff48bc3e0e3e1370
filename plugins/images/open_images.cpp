#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "file_bytes.h"
#include "image_set.h"

namespace orthant::images {
namespace {

// Several files as one.
class JoinedSet final : public ImageSet {
 public:
  explicit JoinedSet(std::vector<std::unique_ptr<ImageSet>> parts) : parts_(std::move(parts)) {
    for (const auto& part : parts_) {
      ends_.push_back((ends_.empty() ? 0 : ends_.back()) + part->size());
      classes_ = std::max(classes_, part->classes());
    }
  }
  std::string name() const override {
    return parts_.size() == 1 ? parts_[0]->name() : fmt::format("{} and {} more", parts_[0]->name(), parts_.size() - 1);
  }
  std::int64_t size() const override { return ends_.back(); }
  std::int64_t classes() const override { return classes_; }
  std::int64_t label(std::int64_t i) const override {
    const auto [part, number] = place(i);
    return part.label(number);
  }
  Image image(std::int64_t i) const override {
    const auto [part, number] = place(i);
    return part.image(number);
  }

 private:
  std::pair<const ImageSet&, std::int64_t> place(std::int64_t i) const {
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), i);
    const std::size_t part = static_cast<std::size_t>(end - ends_.begin());
    return {*parts_[part], part == 0 ? i : i - ends_[part - 1]};
  }

  std::vector<std::unique_ptr<ImageSet>> parts_;
  std::vector<std::int64_t> ends_;
  std::int64_t classes_ = 0;
};

Format format_of(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return Format::folders;
  }
  if (idx_dimensions(path) > 0) {
    return Format::idx;
  }
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) {
    throw ConfigError(fmt::format("'{}' cannot be read: {}", path, error.message()));
  }
  constexpr std::uintmax_t of_ten = 1 + 3 * 32 * 32, of_hundred = 2 + 3 * 32 * 32;
  if (size > 0 && size % of_ten == 0) {
    return Format::cifar10;
  }
  if (size > 0 && size % of_hundred == 0) {
    return Format::cifar100;
  }
  throw ConfigError(fmt::format(
      "'{}' is no folder, no IDX file, and its {} bytes are no records of CIFAR: it is cut short or damaged, or is to "
      "be unpacked first",
      path, size));
}

}  // namespace

std::unique_ptr<ImageSet> open_images(const std::vector<std::string>& paths, Format format) {
  std::vector<std::unique_ptr<ImageSet>> parts;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const std::string& path = paths[i];
    switch (format == Format::by_content ? format_of(path) : format) {
      case Format::idx:
        if (i + 1 == paths.size()) {
          throw ConfigError(fmt::format("'{}' is an IDX file, and no file of labels stands behind it", path));
        }
        parts.push_back(open_idx(path, paths[++i]));
        break;
      case Format::cifar10: parts.push_back(open_cifar(path, false)); break;
      case Format::cifar100: parts.push_back(open_cifar(path, true)); break;
      default: parts.push_back(open_folders(path)); break;
    }
  }
  if (parts.empty()) {
    throw ConfigError("there are no images to read");
  }
  return std::make_unique<JoinedSet>(std::move(parts));
}

}  // namespace orthant::images
