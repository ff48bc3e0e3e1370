// ImageSet: labelled images, numbered from 0, wherever they come from.
//
// Thread safety: const methods from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "image.h"

namespace orthant::images {

class ImageSet {
 public:
  virtual ~ImageSet() = default;
  virtual std::string name() const = 0;  // for messages: "'train.idx'"
  virtual std::int64_t size() const = 0;
  virtual std::int64_t classes() const = 0;
  virtual std::int64_t label(std::int64_t i) const = 0;  // in [0, classes())
  // Errors: Error naming the file, and what is wrong with it.
  virtual Image image(std::int64_t i) const = 0;
};

// How files are read: by what they are, or as the configuration says.
enum class Format { by_content, idx, cifar10, cifar100, folders };

// All files of a list as one set, their images one after another. Errors: ConfigError naming the file that cannot be
// read, and what is wrong with it.
std::unique_ptr<ImageSet> open_images(const std::vector<std::string>& paths, Format format);

// LeCun's format of MNIST: images u8 [n, h, w] or [n, h, w, channels], and beside them labels u8 [n].
std::unique_ptr<ImageSet> open_idx(const std::string& images, const std::string& labels);
// Number of dimensions of an IDX file; 0: it is none.
int idx_dimensions(const std::string& path);
// The binary version of CIFAR-10 and CIFAR-100: records of a label, or a coarse and a fine one, and 3 x 32 x 32 bytes.
std::unique_ptr<ImageSet> open_cifar(const std::string& path, bool hundred);
// A folder for each class, by name, with PNG and JPEG files.
std::unique_ptr<ImageSet> open_folders(const std::string& path);
// Drawn: `count` images of eight shapes at any place, size, angle and colour, with noise of this deviation (1: black to
// white).
std::unique_ptr<ImageSet> draw_shapes(std::int64_t count, std::int64_t size, std::int64_t channels, double noise);

}  // namespace orthant::images
