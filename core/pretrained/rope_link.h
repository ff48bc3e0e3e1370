// Rotary positions in a published config.json: rope_theta and rope_scaling (transformers 4), or both in
// rope_parameters (5).
#pragma once

#include "core/pretrained/config_link.h"

namespace orthant {

// theta: of the family, where its file does not say one.
void link_rope(ConfigLink& link, double theta);

}  // namespace orthant
