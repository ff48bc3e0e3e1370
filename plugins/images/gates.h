// Gates of [moe] for images.
//
// "batch_priority" (Riquelme et al., "Scaling Vision with Sparse Mixture of Experts", 2021): the K likeliest experts,
// weighed by the softmax over all experts, and the seats of an expert go to the tokens that are surest of it, in a
// group of images (moe.group_tokens). Patches that say little lose their seats first, so that a capacity below 1 costs
// little at inference. First choices are seated before second ones; second choices go by their own weight, where the
// paper goes by the token's first.
//
// "soft" (Puigcerver et al., "From Sparse to Soft Mixtures of Experts", 2023) names no gate, but the layer that stands
// in the place of routed experts (soft_experts.h): nothing is chosen.
#pragma once

#include <memory>

#include <orthant/gate.h>

namespace orthant::images {

inline constexpr const char* soft_router = "soft";

std::shared_ptr<const Gate> make_batch_priority();
std::shared_ptr<const Gate> make_soft();

}  // namespace orthant::images
