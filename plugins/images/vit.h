// ModelKind "vit": patches, blocks whose tokens see each other both ways, classes (Dosovitskiy et al., "An Image is
// Worth 16x16 Words", 2020). With [moe] it is V-MoE (Riquelme et al., 2021); with router = "soft" Soft MoE.
//
//   embedding -> layer 0 .. -> head
//
// Blocks and head are those of the kind "decoder", in a token space that is read both ways: attention, experts,
// adapters and recomputation are the core's. What is new here is the first link, and the block of soft experts.
#pragma once

#include <memory>
#include <string>

#include <orthant/model.h>

namespace orthant::images {

std::shared_ptr<const ModelKind> make_vit();

// A block with soft experts (soft_experts.h): norm, attention, norm, soft experts.
std::unique_ptr<Layer> make_soft_block(const Link& link, const Parameters& parameters, const Plan& plan);
std::string block_stem(int block);  // "model.layers.3"

}  // namespace orthant::images
