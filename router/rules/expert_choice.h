// The choice of one expert among the tokens of a group (Zhou et al., "Mixture-of-Experts with Expert Choice Routing",
// NeurIPS 2022): every expert takes equally many tokens, a token may have none or many experts. One expert that takes a
// part of the tokens is Mixture of Depths (Raposo et al., "Mixture-of-Depths", 2024).
//
// It looks ahead: whether a token is taken depends on the later tokens of its group.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <orthant/ops.h>

namespace orthant {

// By what an expert ranks tokens: the log-probability where scores are a softmax, because logits of different tokens do
// not compare; the logit where they are sigmoids, which rise with it.
ORTHANT_HOST_DEVICE inline float rank_for_expert(ScoreKind score, float logit, float lse) {
  return score == ScoreKind::sigmoid ? logit : logit - lse;
}

// Leaves in `tokens`, of which only those that may be chosen are given, the `count` that `expert` ranks highest, of
// equal ones the lower token. A NaN is less than every number. In no particular order.
inline void choose_tokens(std::vector<std::int64_t>& tokens, const float* logits, const float* lse, ScoreKind score,
                          std::int64_t experts, std::int64_t expert, std::int64_t count) {
  const auto rank = [&](std::int64_t t) {
    const float p = rank_for_expert(score, logits[t * experts + expert], lse[t]);
    return std::isnan(p) ? -std::numeric_limits<float>::infinity() : p;
  };
  const auto kept = static_cast<std::ptrdiff_t>(std::min(count, static_cast<std::int64_t>(tokens.size())));
  std::nth_element(tokens.begin(), tokens.begin() + kept, tokens.end(), [&](std::int64_t a, std::int64_t b) {
    const float p = rank(a), q = rank(b);
    return p > q || (p == q && a < b);
  });
  tokens.resize(kept);
}

}  // namespace orthant
