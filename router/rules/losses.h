// The router's two auxiliary losses, and their gradient for one token.
//
// Load balance (Fedus et al., "Switch Transformers" (2021), equations 4-6), for each group g of tokens by itself:
//   L_g = E * sum_e f_e P_e;   f_e = chosen[g, e] / sum_e' chosen[g, e'],   P_e = mean of score[t, e] / sum_e' score[t,
//   e']
// over the valid_g tokens of the group that are not padding. What enters `chosen`: all choices of topk, the first ones
// of switch and gshard. L_g = 1 when the load is balanced. f is a constant in the gradient. The sum of valid_g * L_g is
// what is reported, so that groups and ranks add up whatever their padding; the caller divides by the global number of
// valid tokens. With f inserted, valid_g * L_g = E / sum_e' chosen[g, e'] * sum_e chosen[g, e] * share[g, e], share
// being the sum over tokens whose mean is P. Where the experts choose, each takes equally many tokens: f_e = 1 / E
// whatever the logits, so L_g = sum_e P_e = 1, a constant, and there is no gradient to compute.
//
// z (Zoph et al., "ST-MoE" (2022), equation 5): the sum over valid tokens of logsumexp(logits)^2.
#pragma once

#include <cstdint>

#include <orthant/ops.h>

#include "router/rules/gate.h"

namespace orthant {

// Choices of one token that `chosen` may count.
ORTHANT_HOST_DEVICE inline std::int64_t counted_choices(const GateConfig& config) {
  return config.counted_choices == 0 ? config.top_k : config.counted_choices;
}

// E / sum of chosen[0 .. E): what chosen[g, e] * share[g, e] is multiplied by. 0 for a group of padding only.
ORTHANT_HOST_DEVICE inline double balance_factor(const std::int32_t* chosen, std::int64_t experts) {
  std::int64_t sum = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    sum += chosen[e];
  }
  return sum == 0 ? 0.0 : static_cast<double>(experts) / static_cast<double>(sum);
}

// dlogits[0 .. E) += aux_scale * d(valid_g L_g) / dlogits[t], `factor` being balance_factor of the token's group and
// chosen its row of E counts.
ORTHANT_HOST_DEVICE inline void balance_backward(float* dlogits, const float* score, const std::int32_t* chosen,
                                                 double factor, float aux_scale, const GateConfig& config) {
  double mean = 0;  // of chosen under the token's own distribution
  float sum = 0;
  for (std::int64_t e = 0; e < config.experts; ++e) {
    mean += static_cast<double>(score[e]) * chosen[e];
    sum += score[e];
  }
  sum = config.score == ScoreKind::softmax ? 1.0f : sum;
  if (sum == 0) {
    return;
  }
  mean /= sum;
  const double scale = aux_scale * factor / sum;
  for (std::int64_t e = 0; e < config.experts; ++e) {
    dlogits[e] +=
        static_cast<float>(scale * static_cast<double>(slope_of(config.score, score[e])) * (chosen[e] - mean));
  }
}

// dlogits[0 .. E) += z_scale * d(lse^2) / dlogits, of the token's softmax.
ORTHANT_HOST_DEVICE inline void z_backward(float* dlogits, const float* softmax, float lse, float z_scale,
                                           std::int64_t experts) {
  const float factor = 2 * lse * z_scale;
  for (std::int64_t e = 0; e < experts; ++e) {
    dlogits[e] += factor * softmax[e];
  }
}

}  // namespace orthant
