// Cuts a chain of layers into pieces of about equal cost.
#pragma once

#include <span>
#include <vector>

namespace orthant::pipeline {

// `pieces` runs of layers, none empty: the first layer of each, and at the end the number of layers. The largest cost
// of a piece is the smallest possible; among such cuts the sum of the squares of the pieces' costs is. REQUIRES: 1 <=
// pieces <= cost.size(); costs are not negative.
std::vector<int> cut_evenly(std::span<const double> cost, int pieces);

}  // namespace orthant::pipeline
