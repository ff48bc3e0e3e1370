// Rotary positions as the settings want them, in the terms of the device's operation.
#pragma once

#include <cstdint>
#include <vector>

#include <orthant/ops.h>
#include <orthant/settings.h>

namespace orthant {

enum class RopeScaling { none, linear, llama3, yarn, longrope, dynamic };

// Keys of [model] of every attention that turns its heads by rotary_shape.
struct RotaryKeys {
  double rope_theta = 10000;
  double rope_local_theta = 0;    // of blocks with the window, whose angles nothing scales (Gemma 3); 0: as others
  bool rope_interleaved = false;  // pairs are neighbouring channels (DeepSeek); else of both halves (Llama)
  RopeScaling rope_scaling = RopeScaling::none;
  double rope_factor = 1;                    // how many times as long sequences may be
  std::int64_t rope_original_positions = 0;  // llama3, yarn, longrope, dynamic: positions of the first training
  double rope_low_freq_factor = 1;           // llama3: pairs that turn less often in these positions are slowed down
  double rope_high_freq_factor = 4;          // llama3: those that turn more often stay
  double rope_beta_fast = 32;                // yarn: pairs that turn more often stay
  double rope_beta_slow = 1;                 // yarn: those that turn less often are slowed down
  bool rope_truncate = true;                 // yarn: both bounds are rounded outwards, to whole pairs
  double rope_attention_factor = 0;          // yarn, longrope: of rotated queries and keys; 0: the rule's own
  double rope_mscale = 0;                    // yarn, DeepSeek: the attention factor is a quotient of two such terms
  double rope_mscale_all_dim = 0;  // yarn, DeepSeek: that of the divisor, by whose square latent scales scores
  double rope_alpha = 0;           // dynamic: theta as if sequences were so many times as long, always (Hunyuan)
  // longrope: what divides each pair's frequency, in sequences up to the original positions and in longer ones.
  std::vector<double> rope_short_factors = {}, rope_long_factors = {};
  static const Keys<RotaryKeys>& keys();
};

// What model.rope_scaling makes of the frequencies, where `rotated` channels of a head are rotated.
// Sources: linear: Chen et al., "Extending Context Window of Large Language Models via Positional Interpolation"
// (2023). llama3: Grattafiori et al., "The Llama 3 Herd of Models" (2024), as published with Llama 3.1. yarn: Peng et
// al., "YaRN" (2023), equations 20 to 24; its attention factor as DeepSeek-V2 (2024) where rope_mscale is given.
// longrope: Ding et al., "LongRoPE" (2024), as published with Phi-3. `positions`: of a sequence; more than the original
// ones take longrope's long factors.
RotaryScaling rotary_scaling(const RotaryKeys& keys, std::int64_t rotated, std::int64_t positions = 0);

// The base of the angles: model.rope_theta, which "dynamic" raises in sequences of more than the original positions
// (bloc97, "Dynamically scaled RoPE", 2023), or always as model.rope_alpha says.
double rotary_theta(const RotaryKeys& keys, std::int64_t rotated, std::int64_t positions = 0);

// The rotation of heads of `head_dim` channels, the first `plain` of which stay, in a block; theta is 0 where positions
// are learned. Sequences have data.sequence_length positions.
RotaryShape rotary_shape(const Settings& settings, std::int64_t head_dim, std::int64_t plain, int block);

// Makes the angles those of sequences of data.sequence_length positions, whatever that becomes.
void keep_rotary_angles(Settings& settings);

// What DeepSeek's latent attention multiplies its scores by beside 1 / sqrt(channels of a key head): 1 without
// rope_mscale_all_dim.
double rotary_score_factor(const RotaryKeys& keys);

}  // namespace orthant
