#include "image_source.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "decode_ahead.h"
#include "settings.h"
#include "view.h"

namespace orthant::images {
namespace {

constexpr std::uint32_t view_site = 0x1A6Eu, split_site = 0x5917u;

// The numbers [0, count) in an order that is the same in every run.
std::vector<std::int64_t> shuffled(std::int64_t count) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const RandomKey key{0, Purpose::data_order, split_site, 0};
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[static_cast<std::size_t>(below(key, i, i))]);
  }
  return order;
}

struct Parts {
  std::shared_ptr<const ImageSet> training, measured = {};
  std::vector<std::int64_t> training_order = {}, measured_order = {};  // which images of each
};

class Pictures final : public Sequences {
 public:
  Pictures(Parts parts, const Settings& s)
      : parts_(std::move(parts)),
        rule_(rule_of(s)),
        patch_(patch_keys(s).patch_size),
        class_token_(has_class_token(s)),
        seed_(s.run.seed),
        ahead_([this](const EpochSequence& of) { return shown(of); }, static_cast<int>(image_keys(s).image_workers),
               static_cast<std::size_t>(4 * largest_batch(s.batch) + 64)) {}

  std::string name() const override { return parts_.training->name(); }
  std::int64_t vocabulary() const override { return parts_.training->classes(); }
  std::optional<std::int64_t> training_sequences() const override { return count(parts_.training_order); }
  Sequence training(std::int64_t i) const override { return shown({.number = i}); }
  Sequence in_epoch(const EpochSequence& of) const override { return ahead_.take(of); }
  void expect(std::span<const EpochSequence> soon) const override { ahead_.expect(soon); }
  std::int64_t validation_sequences() const override { return count(parts_.measured_order); }
  Sequence validation(std::int64_t i) const override {
    return sequence(*parts_.measured, parts_.measured_order[static_cast<std::size_t>(i)], std::nullopt);
  }
  std::vector<std::string> notes() const override {
    return {fmt::format("{} images of {} classes to train on, {} are measured", parts_.training_order.size(),
                        vocabulary(), parts_.measured_order.size())};
  }

 private:
  static std::int64_t count(const std::vector<std::int64_t>& of) { return static_cast<std::int64_t>(of.size()); }
  static ViewRule rule_of(const Settings& s) {
    const ImageKeys keys = image_keys(s);
    const std::size_t channels = static_cast<std::size_t>(keys.image_channels);
    const auto of_channels = [&](const std::vector<double>& written) {
      return written.empty() ? std::vector<double>(channels, 0.5) : written;
    };
    return {.size = static_cast<int>(keys.image_size),
            .channels = static_cast<int>(keys.image_channels),
            .padding = static_cast<int>(keys.image_padding),
            .area = keys.image_area,
            .flip = keys.image_flip,
            .mean = of_channels(keys.image_mean),
            .deviation = of_channels(keys.image_std)};
  }
  Sequence shown(const EpochSequence& of) const {
    const std::int64_t image = parts_.training_order[static_cast<std::size_t>(of.number)];
    const RandomKey key{seed_, Purpose::data_order, view_site, static_cast<std::uint32_t>(of.epoch)};
    return sequence(*parts_.training, image, Draws{key, image});
  }
  Sequence sequence(const ImageSet& set, std::int64_t image, const std::optional<Draws>& draws) const {
    const std::vector<float> view = view_of(set.image(image), rule_, draws);
    const std::int64_t side = rule_.size, across = side / patch_;
    const std::size_t columns = static_cast<std::size_t>(rule_.channels * patch_ * patch_);
    SequenceDocument document;
    if (class_token_) {
      document.token.push_back(class_token);
      document.value.assign(columns, 0);
    }
    for (std::int64_t patch = 0; patch < across * across; ++patch) {
      document.token.push_back(patch_token);
      const std::int64_t top = patch / across * patch_, left = patch % across * patch_;
      for (std::int64_t channel = 0; channel < rule_.channels; ++channel) {
        for (std::int64_t y = top; y < top + patch_; ++y) {
          const auto row = view.begin() + (channel * side + y) * side + left;
          document.value.insert(document.value.end(), row, row + patch_);
        }
      }
    }
    document.label.assign(document.token.size(), -1);
    document.label.front() = static_cast<std::int32_t>(set.label(image));
    return {document};
  }

  Parts parts_;
  ViewRule rule_;
  std::int64_t patch_;
  bool class_token_;
  std::uint64_t seed_;
  mutable DecodeAhead ahead_;  // last: its threads use the others
};

// A kind of this plugin has refused them by then.
void check_sizes(const Settings& s) {
  for (const Refusal& wrong : wrong_sizes(s)) {
    throw SettingError(wrong.keys.front(), fmt::format("{}\n{}", wrong.message, wrong.advice));
  }
}

// What is held out of one set: its last images in an order of its own.
void split(Parts& parts, const Settings& s) {
  std::vector<std::int64_t> order = shuffled(parts.training->size());
  const double share = s.data.validation_fraction * static_cast<double>(order.size());
  const auto held = static_cast<std::ptrdiff_t>(share + 0.5);
  parts.measured = parts.training;
  parts.measured_order.assign(order.end() - held, order.end());
  order.resize(order.size() - static_cast<std::size_t>(held));
  parts.training_order = std::move(order);
}

std::unique_ptr<Sequences> pictures(Parts parts, const Settings& s) {
  const std::size_t most = static_cast<std::size_t>(s.data.validation_sequences);
  parts.measured_order.resize(std::min(parts.measured_order.size(), most));
  if (parts.training->classes() < 2) {
    throw ConfigError(fmt::format("{} has one class", parts.training->name()));
  }
  return std::make_unique<Pictures>(std::move(parts), s);
}

std::unique_ptr<ImageSet> read(const std::vector<std::string>& paths, Format format, const std::string& key) {
  try {
    return open_images(paths, format);
  } catch (const ConfigError& refused) {
    throw SettingError("data." + key, fmt::format("[data] {}: {}", key, refused.what()));
  }
}

class ImageSource final : public Source {
 public:
  std::vector<KindKey> keys() const override { return ImageKeys::keys().declared(); }
  std::vector<std::string> spaces(const Settings&) const override { return {patch_space}; }
  std::optional<std::int64_t> vocabulary(const Settings& s) const override {
    return read(s.data.path, image_keys(s).image_format, "path")->classes();
  }
  std::unique_ptr<Sequences> open(const Settings& s) const override {
    check_sizes(s);
    const ImageKeys keys = image_keys(s);
    if (s.data.path.empty()) {
      throw SettingError("data.path",
                         "[data] path: source \"images\" needs files or folders to read\nwrite path = [\"FOLDER\"]");
    }
    Parts parts{.training = read(s.data.path, keys.image_format, "path")};
    if (keys.test_path.empty()) {
      split(parts, s);
      return pictures(std::move(parts), s);
    }
    parts.measured = read(keys.test_path, keys.image_format, "test_path");
    parts.training_order = shuffled(parts.training->size());
    parts.measured_order = shuffled(parts.measured->size());
    if (parts.measured->classes() > parts.training->classes()) {
      throw SettingError("data.test_path",
                         fmt::format("[data] test_path: {} has {} classes, and {} has {}", parts.measured->name(),
                                     parts.measured->classes(), parts.training->name(), parts.training->classes()));
    }
    return pictures(std::move(parts), s);
  }
};

class ShapeSource final : public Source {
 public:
  std::vector<KindKey> keys() const override {
    std::vector<KindKey> keys = ImageKeys::keys().declared();
    const std::vector<KindKey> own = ShapeKeys::keys().declared();
    keys.insert(keys.end(), own.begin(), own.end());
    return keys;
  }
  std::vector<std::string> spaces(const Settings&) const override { return {patch_space}; }
  std::optional<std::int64_t> vocabulary(const Settings& s) const override { return drawn(s)->classes(); }
  std::unique_ptr<Sequences> open(const Settings& s) const override {
    check_sizes(s);
    Parts parts{.training = drawn(s)};
    split(parts, s);
    return pictures(std::move(parts), s);
  }

 private:
  static std::unique_ptr<ImageSet> drawn(const Settings& s) {
    const ImageKeys keys = image_keys(s);
    const ShapeKeys shapes = read_keys<ShapeKeys>(kind_values(s, "data"));
    return draw_shapes(shapes.shapes, keys.image_size, keys.image_channels, shapes.shape_noise);
  }
};

}  // namespace

std::shared_ptr<const Source> make_image_source() {
  return std::make_shared<ImageSource>();
}
std::shared_ptr<const Source> make_shape_source() {
  return std::make_shared<ShapeSource>();
}

}  // namespace orthant::images
