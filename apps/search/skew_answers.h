// How long steps of a layout take by a recorded routing, and what a capacity, another expert axis or another placement
// would make of them.
#pragma once

#include <string>
#include <vector>

#include "apps/search/search.h"

namespace orthant::search {

struct SkewAnswer {
  std::string question;  // "as recorded", "capacity factor 1.25", ...
  cost::StepQuantiles seconds;
  double busiest = 1;  // the busiest rank's choices over the mean, in the mean of micro-batches and layers
  double dropped = 0;  // part of all choices
  bool fits = true;    // into a rank's memory
};

// Of a layout that the search has found; the first answer is the recorded routing's. Empty: the problem has no recorded
// routing.
std::vector<SkewAnswer> skew_answers(const Problem& problem, const Candidate& candidate);

}  // namespace orthant::search
