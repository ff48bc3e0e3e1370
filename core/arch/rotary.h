// Rotary positions as the settings want them, in the terms of the device's operation.
#pragma once

#include <cstdint>

#include <orthant/ops.h>
#include <orthant/settings.h>

namespace orthant {

// What model.rope_scaling makes of the frequencies, where `rotated` channels of a head are rotated.
// Sources: linear: Chen et al., "Extending Context Window of Large Language Models via Positional Interpolation"
// (2023). llama3: Grattafiori et al., "The Llama 3 Herd of Models" (2024), as published with Llama 3.1. yarn: Peng et
// al., "YaRN" (2023), equations 20 to 24; its attention factor as DeepSeek-V2 (2024) where rope_mscale is given.
// longrope: Ding et al., "LongRoPE" (2024), as published with Phi-3. `positions`: of a sequence; more than the original
// ones take longrope's long factors.
RotaryScaling rotary_scaling(const ModelSettings& model, std::int64_t rotated, std::int64_t positions = 0);

// The base of the angles: model.rope_theta, which "dynamic" raises in sequences of more than the original positions
// (bloc97, "Dynamically scaled RoPE", 2023), or always as model.rope_alpha says.
double rotary_theta(const ModelSettings& model, std::int64_t rotated, std::int64_t positions = 0);

// The rotation of heads of `head_dim` channels, the first `plain` of which stay, in a block; theta is 0 where positions
// are learned. Sequences have data.sequence_length positions.
RotaryShape rotary_shape(const Settings& settings, std::int64_t head_dim, std::int64_t plain, int block);

// Makes the angles those of sequences of data.sequence_length positions, whatever that becomes.
void keep_rotary_angles(Settings& settings);

// What DeepSeek's latent attention multiplies its scores by beside 1 / sqrt(channels of a key head): 1 without
// rope_mscale_all_dim.
double rotary_score_factor(const ModelSettings& model);

}  // namespace orthant
