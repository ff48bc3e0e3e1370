// Which rank the others wait for, and what it does meanwhile that they do not.
#pragma once

#include <string_view>

#include "core/trace/summary.h"

namespace orthant {

// The products of routed experts, whose rows routing decides.
bool is_expert_product(std::string_view operation);

// Fills late_rank and why from the ranks' times. A rank is late where the others wait for it, on average, for at least
// a fiftieth of a step; with stages, where they have bubbles for it far beyond what they have for all others.
void find_late_rank(TraceSummary& summary);

}  // namespace orthant
