// The sums of pairs of answers (data.source = "pairs").
#pragma once

#include <cstdint>

namespace orthant {

// Sums over the pairs of a step. `nll` is over the tokens of chosen answers, the others are over pairs; `reference`
// tells whether the reference's numbers are finite.
enum class PairSum { loss, right, reward_chosen, reward_rejected, logp_chosen, logp_rejected, nll, reference };
inline constexpr std::int64_t pair_sums = 8;

}  // namespace orthant
