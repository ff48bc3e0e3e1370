// The choice of one expert among the tokens of a group (Zhou et al., "Mixture-of-Experts with Expert Choice Routing",
// NeurIPS 2022): every expert takes equally many tokens, a token may have none or many experts.
//
// It looks ahead: whether a token is taken depends on the later tokens of its group.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace orthant {

// Leaves in `tokens`, of which only those that may be chosen are given, the `count` to which `expert` is likeliest, by
// log-probability logits[t, expert] - lse[t]; of equal ones the lower token. A NaN is less than every number. In no
// particular order.
inline void choose_tokens(std::vector<std::int64_t>& tokens, const float* logits, const float* lse,
                          std::int64_t experts, std::int64_t expert, std::int64_t count) {
  const auto rank = [&](std::int64_t t) {
    const float p = logits[t * experts + expert] - lse[t];
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
