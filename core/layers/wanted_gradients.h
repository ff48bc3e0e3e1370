// Which gradients of a group anybody reads.
#pragma once

#include <algorithm>

#include <orthant/param_group.h>

namespace orthant {

// Whether some parameter of the group trains, or has an adapter that does.
inline bool wants_gradients(const ParamGroup& group) {
  return std::any_of(group.params.begin(), group.params.end(),
                     [](const Param& p) { return !p.spec.frozen || p.spec.adapted; });
}

}  // namespace orthant
