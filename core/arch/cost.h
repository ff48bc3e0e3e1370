// How much work each layer is, for cutting the model into stages.
#pragma once

#include <cstdint>
#include <vector>

#include <orthant/settings.h>

namespace orthant {

// Floating-point operations per token of each layer's forward pass: [0] the embedding, [1 + block], then the final norm
// and head, then each depth of model.mtp_depth. Counted from the shapes (a product of [1, k] and [k, n] is 2 k n),
// attention at half a sequence.
std::vector<double> layer_costs(const Settings& settings);

// Floating-point operations that the model needs to train on one token: matrix products and attention, forward and, at
// twice that, backward (Chowdhery et al., "PaLM", appendix B; here a token attends to half a sequence on average).
double training_flops(const Settings& settings);

// Of one token's forward pass through an FFN with the model's activation, `width` channels wide.
double ffn_flops(const Settings& settings, std::int64_t width);

}  // namespace orthant
