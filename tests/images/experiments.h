// Models of images in layouts: a dense ViT with a class token, V-MoE whose groups are pairs of images, and Soft MoE.
#pragma once

#include <string>

#include "tests/support/experiment.h"

namespace orthant::test::images_test {

inline const std::string plugin = "[plugins.images]\n";

inline const Overrides pictures = {
    R"(model.kind="vit")",          R"(data.source="shapes")",      "data.image_channels=1", "data.shapes=64",
    "data.validation_fraction=0.1", R"(model.positions="learned")", "model.patch_size=4",    "model.vocab_size=8",
    R"(model.activation="gelu")",   R"(model.norm="layernorm")",    "model.head_bias=true"};
// 9 patches and a class token; biases as published ViTs have them.
inline const Overrides dense =
    joined(pictures, {"data.image_size=12", "data.sequence_length=10", "moe.experts=0", R"(model.ffn="vit_mlp")",
                      "model.biases=true", "model.output_bias=true", "train.label_smoothing=0.1"});
// 16 patches, whose mean is classified.
inline const Overrides of_mean =
    joined(pictures, {"data.image_size=16", "data.sequence_length=16", R"(model.pool="mean")"});
inline const Overrides priority = joined(
    of_mean, {R"(moe.router="batch_priority")", "moe.capacity_factor=0.75", "moe.group_tokens=32", "moe.every=1"});
inline const Overrides soft = joined(of_mean, {R"(moe.router="soft")", "moe.top_k=1", "moe.z_loss=0", "moe.slots=3"});
// Patches of 4 x 4 on a grid of 3: a stem, a stage of two blocks, two blocks of attention.
inline const Overrides convolutions = joined(
    pictures, {R"(model.kind="coatnet")", R"(model.positions="rotary")", R"(model.pool="mean")", "data.image_size=12",
               "data.sequence_length=9", "model.conv_widths=[8]", "model.conv_blocks=[2]", "moe.experts=0"});

}  // namespace orthant::test::images_test
