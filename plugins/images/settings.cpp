#include "settings.h"

#include <utility>

namespace orthant::images {

const Keys<ImageKeys>& ImageKeys::keys() {
  static const auto all =
      Keys<ImageKeys>()
          .add("image_size", &ImageKeys::image_size, "images: height and width that a model sees, in pixels.",
               between(1, 4096))
          .after("sequence_length")
          .add("image_channels", &ImageKeys::image_channels,
               "images: 1, grey, or 3; files of the other kind are turned.", between(1, 3))
          .refuse([](const ImageKeys& own) {
            return own.image_channels == 2 ? "[data] image_channels: 2 channels are no colours\nwrite 1 or 3" : "";
          })
          .choice("image_format", &ImageKeys::image_format, {"by_content", "idx", "cifar10", "cifar100", "folders"},
                  "images: what data.path names: pairs of IDX files (images, labels), CIFAR's binary files, or folders "
                  "with a folder for each class.")
          .add("image_padding", &ImageKeys::image_padding,
               "images: in training an image is moved by up to so many of its pixels, over black.", between(0, 4096))
          .add("image_area", &ImageKeys::image_area,
               "images: in training a rectangle of this share of the image, or more, is shown; 1: the square in the "
               "middle.",
               between(0.01, 1))
          .add("image_flip", &ImageKeys::image_flip, "images: in training half of the images are mirrored.")
          .add("image_mean", &ImageKeys::image_mean,
               "images: of each channel, 0 black to 1 white: what is subtracted; empty: 0.5.", between(0, 1))
          .add("image_std", &ImageKeys::image_std, "images: of each channel: what it is divided by then; empty: 0.5.",
               between(0.001, 100))
          .add("image_workers", &ImageKeys::image_workers,
               "images: threads of a rank that decode images beside the training; 0: none.", between(0, 256))
          .add("test_path", &ImageKeys::test_path,
               "images: as data.path: all that is measured, in place of data.validation_fraction.")
          .file();
  return all;
}

const Keys<ShapeKeys>& ShapeKeys::keys() {
  static const auto all = Keys<ShapeKeys>()
                              .add("shapes", &ShapeKeys::shapes,
                                   "shapes: how many images there are, held-out ones among them.", between(16, 1 << 30))
                              .add("shape_noise", &ShapeKeys::shape_noise,
                                   "shapes: what is added to each pixel, at most; 1: black to white.", between(0, 1));
  return all;
}

const Keys<PatchKeys>& PatchKeys::keys() {
  static const auto all =
      Keys<PatchKeys>()
          .add("patch_size", &PatchKeys::patch_size, "vit: side of a patch, in pixels; it divides data.image_size.",
               between(1, 1024))
          .choice(
              "pool", &PatchKeys::pool, {"class", "mean"},
              "vit: what classes are read from: a token of its own before the patches, or the mean of all patches.");
  return all;
}

const Keys<ConvKeys>& ConvKeys::keys() {
  static const auto all =
      Keys<ConvKeys>()
          .add("conv_widths", &ConvKeys::conv_widths,
               "coatnet: channels behind the stem and behind each stage of convolutions but the last, which has "
               "d_model.",
               between(1, 65536))
          .add("conv_blocks", &ConvKeys::conv_blocks,
               "coatnet: blocks of each stage of convolutions; stem and stages halve the side of a patch each.",
               between(1, 1024));
  return all;
}

const Keys<InferenceKeys>& InferenceKeys::keys() {
  static const auto all = Keys<InferenceKeys>()
                              .add("capacity_at_inference", &InferenceKeys::capacity_at_inference,
                                   "vit: moe.capacity_factor where nothing is trained; 0: the same.", between(0, 1000))
                              .in("moe");
  return all;
}

const Keys<SoftKeys>& SoftKeys::keys() {
  static const auto all = Keys<SoftKeys>().add("slots", &SoftKeys::slots,
                                               "soft: slots of each expert in an image; moe.experts times it is about "
                                               "the number of tokens where experts cost what one FFN does.",
                                               between(1, 65536));
  return all;
}

const Keys<ClassKeys>& ClassKeys::keys() {
  static const auto all =
      Keys<ClassKeys>().add("label_smoothing", &ClassKeys::label_smoothing,
                            "image_classes: share of the label that all classes have in common.", between(0, 0.99));
  return all;
}

std::vector<Refusal> wrong_sizes(const Settings& s) {
  const ImageKeys keys = image_keys(s);
  const PatchKeys patches = patch_keys(s);
  if (keys.image_size % patches.patch_size != 0) {
    return {
        {{"model.patch_size", "data.image_size"},
         fmt::format("[model] patch_size: {} does not divide data.image_size, {}", patches.patch_size, keys.image_size),
         "write one that does"}};
  }
  const std::int64_t tokens = patches_of(s) + (has_class_token(s) ? 1 : 0);
  if (s.data.sequence_length != tokens) {
    return {
        {{"data.sequence_length", "data.image_size", "model.patch_size", "model.pool"},
         fmt::format("[data] sequence_length: an image of {0} x {0} has {1} patches of {2} x {2}{3}", keys.image_size,
                     patches_of(s), patches.patch_size, has_class_token(s) ? " and a class token" : ""),
         fmt::format("write sequence_length = {}", tokens)}};
  }
  for (const auto& [key, list] : {std::pair("image_mean", &keys.image_mean), std::pair("image_std", &keys.image_std)}) {
    if (!list->empty() && static_cast<std::int64_t>(list->size()) != keys.image_channels) {
      return {{{fmt::format("data.{}", key)},
               fmt::format("[data] {}: {} numbers for {} channels", key, list->size(), keys.image_channels),
               "write one for each"}};
    }
  }
  return {};
}

}  // namespace orthant::images
