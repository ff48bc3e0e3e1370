// The exchange of a layout, tried: each of its ranks is a thread of this process with the plan of the configuration,
// and gives whatever plugin exchanges rows there those that recorded decisions would have sent. So its legs, its
// padding and its chunks are in what is counted and timed, and no layout of rows is known here.
#pragma once

#include <vector>

#include "apps/route/replay.h"
#include "apps/route/travel.h"
#include "core/config/config.h"

namespace orthant {

class ExchangeTrial {
 public:
  // Whether there is an exchange to try, and no more ranks than threads can stand for.
  static bool possible(const Config& config, const ExpertLayout& layout);

  // REQUIRES: possible; `config` outlives it, and `layout` is that of its plugins. node_ranks of it says what counts as
  // between nodes; two_levels and place_of_expert are the exchange's own to know.
  ExchangeTrial(const Config& config, ExpertLayout layout) : config_(config), layout_(std::move(layout)) {}

  // Of each layer of a step, as travel_of. Rows are one element wide here, and counted as whole ones.
  std::vector<Travel> travels(const std::vector<Decisions>& layers) const;
  // The wall time in which the ranks pack rows, move them there and back, forward and backward, and sum them up, all
  // layers of a step one behind the other: the best of several. Errors: Error where a rank fails.
  double seconds(const std::vector<Decisions>& layers) const;

 private:
  const Config& config_;
  const ExpertLayout layout_;
};

}  // namespace orthant
