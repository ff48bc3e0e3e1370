#include <algorithm>
#include <cctype>
#include <filesystem>
#include <system_error>
#include <utility>

#include "decode.h"
#include "image_set.h"

namespace orthant::images {

namespace fs = std::filesystem;

Image decode(const std::string& path) {
  const Bytes bytes = read_file(path);
  const auto begins = [&](std::initializer_list<std::uint8_t> with) {
    return bytes.size() >= with.size() && std::equal(with.begin(), with.end(), bytes.begin());
  };
  if (begins({0x89, 'P', 'N', 'G'})) {
    return decode_png(bytes, path);
  }
  if (begins({0xFF, 0xD8})) {
    return decode_jpeg(bytes, path);
  }
  fail("'{}' is neither a PNG nor a JPEG file: its {} bytes begin with neither's mark", path, bytes.size());
}

namespace {

bool is_picture(const fs::path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return ending == ".png" || ending == ".jpg" || ending == ".jpeg";
}

std::vector<fs::path> sorted_entries(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    entries.push_back(entry->path());
  }
  if (error) {
    throw ConfigError(fmt::format("'{}' cannot be listed: {}", folder.string(), error.message()));
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

class FolderSet final : public ImageSet {
 public:
  explicit FolderSet(std::string path) : path_(std::move(path)) {
    for (const fs::path& folder : sorted_entries(path_)) {
      if (!fs::is_directory(folder)) {
        continue;
      }
      const std::size_t before = files_.size();
      for (const fs::path& file : sorted_entries(folder)) {
        if (is_picture(file)) {
          files_.push_back({file.string(), classes_});
        }
      }
      if (files_.size() == before) {
        throw ConfigError(
            fmt::format("'{}' has no PNG or JPEG file: it would be a class without images", folder.string()));
      }
      ++classes_;
    }
    if (classes_ < 2) {
      throw ConfigError(
          fmt::format("'{}' has {} folders with images, expected one for each class, two at least", path_, classes_));
    }
  }
  std::string name() const override { return fmt::format("'{}'", path_); }
  std::int64_t size() const override { return static_cast<std::int64_t>(files_.size()); }
  std::int64_t classes() const override { return classes_; }
  std::int64_t label(std::int64_t i) const override { return files_[static_cast<std::size_t>(i)].second; }
  Image image(std::int64_t i) const override { return decode(files_[static_cast<std::size_t>(i)].first); }

 private:
  std::string path_;
  std::vector<std::pair<std::string, std::int64_t>> files_;  // and the class of each
  std::int64_t classes_ = 0;
};

}  // namespace

std::unique_ptr<ImageSet> open_folders(const std::string& path) {
  return std::make_unique<FolderSet>(path);
}

}  // namespace orthant::images
