// Rotary positions in a published config.json: rope_theta and rope_scaling (transformers 4), or both in
// rope_parameters (5).
#pragma once

#include <cstdint>

#include "apps/pretrained/config_link.h"

namespace orthant {

// A family that may rotate the first channels of a head alone: partial_rotary_factor, beside the others or within
// rope_parameters.
struct PartialRotary {
  double missing = 1;                  // the share of a head's channels where the file does not say it
  const char* channels_key = nullptr;  // a key of theirs that says their number instead; null: there is none
  std::int64_t head_dim = 0;           // of the family, where the file does not say it; 0: hidden_size / heads
};

// What a family's class reads of rotary positions beside what all do.
struct RopeKeys {
  const PartialRotary* part = nullptr;  // null: it rotates whole heads
  bool phi3 = false;     // "su" and "yarn" are other names of longrope; the original positions stand outside
  bool mscales = false;  // longrope: the attention factor is short_mscale and long_mscale (Phi-3.5-MoE)
  bool layers = false;   // rope_parameters may name the kinds of layers; these are of those without the window
  bool alpha = false;    // dynamic: a number that fixes the base, and then nothing else is read (Hunyuan)
};

// theta: of the family, where its file does not say one.
void link_rope(ConfigLink& link, double theta, const RopeKeys& keys = {});

// The base in blocks with the window (Gemma 3), in rope_local_base_freq or rope_parameters; theta: where neither says
// it. slides: whether there are such blocks.
void link_local_rope(ConfigLink& link, bool slides, double theta);

}  // namespace orthant
