// What a point would have dropped at other capacities, from the routing that its run recorded.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "bench/study/point_run.h"

namespace orthant {

// Whether a point's run records its routing for this: a dropless mixture.
bool is_recorded(const GridPoint& point);

// [[capacity factor, share of choices that find no seat], ...] in the last recorded step, over all routed layers.
// Errors: Error where the run has no recording.
nlohmann::ordered_json counterfactual_drops(const StudyFolder& folder, const GridPoint& point,
                                            const std::vector<double>& capacity_factors);

}  // namespace orthant
