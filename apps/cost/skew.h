// What uneven routing makes of a step: recorded loads of experts, what a capacity, another axis or another placement
// makes of them, and how long steps take that are made of such micro-batches.
//
// Thread safety: pure functions.
#pragma once

#include <vector>

#include "apps/cost/step_time.h"

namespace orthant::cost {

// Choices of experts: [micro-batch][routed layer][expert].
using Loads = std::vector<std::vector<std::vector<double>>>;

// [routed layer][expert]: which of the ranks that share the experts out holds it.
using ExpertPlaces = std::vector<std::vector<int>>;

// No expert gets more than `factor` times the mean of its layer. The part of all choices that finds no place in
// `dropped`.
Loads capped(Loads loads, double factor, double& dropped);

// Equal runs of experts, in order, as the `expert` axis has them. REQUIRES: ranks divides the experts of each layer.
ExpertPlaces in_order(const Loads& loads, int ranks);
// Equally many experts a rank, by the mean of all micro-batches: the busiest expert that has no place goes to the rank
// with least work that has room (longest processing time first, Graham 1969). REQUIRES: as in_order().
ExpertPlaces evened(const Loads& loads, int ranks);

// Of each micro-batch and layer the busiest rank's choices over the mean, as Routing::busiest.
Routing routing_of(const Loads& loads, const ExpertPlaces& places, int ranks);

struct StepQuantiles {
  double mean = 0, p50 = 0, p99 = 0;  // s
};
// Of `steps` steps whose micro-batches are drawn from the recorded ones, by a generator that always begins alike. The
// slowest rank of every micro-batch counts. REQUIRES: routing.busiest is not empty.
StepQuantiles step_quantiles(const ModelShape& model, const Layout& layout, const Machine& machine,
                             const Practice& practice, const Routing& routing, const StepClock& clock, int steps = 200);

}  // namespace orthant::cost
