// Rotary positions in a published config.json: rope_theta and rope_scaling (transformers 4), or both in
// rope_parameters (5).
#pragma once

#include <cstdint>

#include "core/pretrained/config_link.h"

namespace orthant {

// A family that may rotate the first channels of a head alone: partial_rotary_factor, beside the others or within
// rope_parameters.
struct PartialRotary {
  double missing = 1;                  // the share of a head's channels where the file does not say it
  const char* channels_key = nullptr;  // a key of theirs that says their number instead; null: there is none
  std::int64_t head_dim = 0;           // of the family, where the file does not say it; 0: hidden_size / heads
};

// theta: of the family, where its file does not say one. part: null where it rotates whole heads.
void link_rope(ConfigLink& link, double theta, const PartialRotary* part = nullptr);

}  // namespace orthant
