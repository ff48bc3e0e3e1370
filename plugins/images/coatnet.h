// ModelKind "coatnet": stages of convolutions, then blocks of attention with relative positions (Dai et al., "CoAtNet:
// Marrying Convolution and Attention for All Data Sizes", 2021), with one stage of attention.
//
//   stem -> stage 0 block 0 .. -> layer 0 .. -> head
//
// A token is a patch. Convolutions pass it on as a cell of pixels, [T, side side channels], which the stem and the
// first block of each stage halve; behind the last stage it is one pixel of d_model channels. With [moe] experts stand
// in the attention blocks.
#pragma once

#include <memory>

#include <orthant/model.h>

namespace orthant::images {

std::shared_ptr<const ModelKind> make_coatnet();

}  // namespace orthant::images
