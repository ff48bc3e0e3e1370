// A block of convolutions (Sandler et al., "MobileNetV2", 2018; with squeeze and excite, Hu et al., 2018) as CoAtNet
// has it (Dai et al., "CoAtNet: Marrying Convolution and Attention for All Data Sizes", 2021, appendix A.2):
//
//   y = short(x) + project(excite(gelu(depthwise(gelu(expand(norm(x)))))))
//
// short: x, or where the side or the width changes the mean of four pixels, projected. The norm is model.norm, of each
// pixel by itself: nothing is a statistic of a batch, and so nothing depends on the layout or differs in use.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <orthant/model.h>

namespace orthant::images {

struct ConvShape {
  std::int64_t grid = 0, side = 0, stride = 1;  // cells of an image, pixels of a cell that enters
  std::int64_t from = 0, to = 0;                // channels
  std::int64_t hidden() const { return 4 * from; }
  std::int64_t squeezed() const { return from > 4 ? from / 4 : 1; }
  std::int64_t pixels() const { return (side / stride) * (side / stride); }  // of a cell that leaves
  bool changes() const { return stride > 1 || from != to; }
};

Link mbconv_link(const Settings& s, const ConvShape& shape, const std::string& name, const std::string& stem);
std::unique_ptr<Layer> make_mbconv(const ConvShape& shape, const std::string& stem, const Parameters& parameters,
                                   const Plan& plan);

// The first link: a convolution of 3 x 3 with stride 2 from the pixels of patches, gelu, and one with stride 1.
Link stem_link(const Settings& s, const ConvShape& shape);
std::unique_ptr<Layer> make_stem(const ConvShape& shape, const Parameters& parameters);

}  // namespace orthant::images
