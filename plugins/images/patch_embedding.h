// The first link of a model of images: patches [T, columns] become tokens [T, d].
//
//   x = W value + kind[token] + position
//
// kind has a row for patches, the bias of W, and a row for the class token, whose value is zeros (Dosovitskiy et al.,
// "An Image is Worth 16x16 Words", 2020, equation 1). Every rank computes the rows that it holds in Region::norm.
#pragma once

#include <memory>
#include <string>

#include <orthant/model.h>

namespace orthant::images {

inline constexpr const char* patch_matrix = "model.embed_patches.weight";      // [d, columns]
inline constexpr const char* kind_table = "model.embed_tokens.weight";         // [2, d]
inline constexpr const char* position_table = "model.embed_positions.weight";  // [positions, d]

Link embedding_link(const Settings& s);
std::unique_ptr<Layer> make_embedding(const Parameters& parameters);

}  // namespace orthant::images
