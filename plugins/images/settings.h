// What the configuration says of images, and of models of them, beside what every kind reads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <orthant/keys.h>
#include <orthant/settings.h>

#include "image_set.h"

namespace orthant::images {

// [data], of the sources "images" and "shapes".
struct ImageKeys {
  std::int64_t image_size = 32;
  std::int64_t image_channels = 3;
  Format image_format = Format::by_content;
  std::int64_t image_padding = 0;
  double image_area = 1;
  bool image_flip = false;
  std::vector<double> image_mean, image_std;
  std::int64_t image_workers = 1;
  std::vector<std::string> test_path;
  static const Keys<ImageKeys>& keys();
};

// [data], of "shapes" alone.
struct ShapeKeys {
  std::int64_t shapes = 10000;
  double shape_noise = 0.1;
  static const Keys<ShapeKeys>& keys();
};

enum class Pool { class_token, mean };

// [model], of kinds that see patches.
struct PatchKeys {
  std::int64_t patch_size = 4;
  Pool pool = Pool::class_token;
  static const Keys<PatchKeys>& keys();
};

// [model], of "coatnet".
struct ConvKeys {
  std::vector<std::int64_t> conv_widths = {32};
  std::vector<std::int64_t> conv_blocks = {2};
  static const Keys<ConvKeys>& keys();
};

// [moe], of "vit".
struct InferenceKeys {
  double capacity_at_inference = 0;
  static const Keys<InferenceKeys>& keys();
};

// [moe], of the gate "soft".
struct SoftKeys {
  std::int64_t slots = 1;
  static const Keys<SoftKeys>& keys();
};

// [train], of the objective "image_classes".
struct ClassKeys {
  double label_smoothing = 0;
  static const Keys<ClassKeys>& keys();
};

inline ImageKeys image_keys(const Settings& s) {
  return read_keys<ImageKeys>(kind_values(s, "data"));
}
inline PatchKeys patch_keys(const Settings& s) {
  return read_keys<PatchKeys>(kind_values(s, "model"));
}

// What does not fit together of an image, its patches and a sequence.
std::vector<Refusal> wrong_sizes(const Settings& s);

// Numbers of a patch: of each channel its pixels, row by row.
inline std::int64_t patch_columns(const Settings& s) {
  const std::int64_t side = patch_keys(s).patch_size;
  return image_keys(s).image_channels * side * side;
}
inline std::int64_t patches_of(const Settings& s) {
  const std::int64_t side = image_keys(s).image_size / patch_keys(s).patch_size;
  return side * side;
}
inline bool has_class_token(const Settings& s) {
  return patch_keys(s).pool == Pool::class_token;
}

// Token ids: what a token is.
inline constexpr std::int32_t patch_token = 0, class_token = 1;

inline constexpr const char* vit_kind = "vit";
inline constexpr const char* patch_space = "patches";

}  // namespace orthant::images
