#include "apps/search/timing.h"

#include <algorithm>
#include <cmath>

namespace orthant::search {

double most_uneven(const Problem& problem, const cost::Layout& layout) {
  const cost::Routing& routing = problem.routing_for(layout.expert);
  double most = 1;
  for (const std::vector<double>& layers : routing.busiest) {
    most = std::max(most, *std::max_element(layers.begin(), layers.end()));
  }
  if (routing.busiest.empty()) {
    for (std::size_t m = 0; m < std::max<std::size_t>(1, routing.load.size()); ++m) {
      most = std::max(most, cost::imbalance(routing, problem.model.experts, layout.expert, static_cast<int>(m)));
    }
  }
  return problem.model.experts > 0 ? most : 1;
}

cost::StageMemory memory_of(const Problem& problem, const cost::Layout& layout) {
  return cost::peak_memory(problem.model, layout, most_uneven(problem, layout));
}

const cost::StepClock& Clocks::of(const cost::Layout& layout) {
  auto& clock = known_[{layout.pipeline, layout.chunks, static_cast<std::int64_t>(layout.micro_batches()),
                        layout.all_at_once || layout.layered}];
  if (clock == nullptr) {
    clock =
        std::make_unique<cost::StepClock>(layout, problem_.routing_for(layout.expert).recorded(), problem_.programs);
  }
  return *clock;
}

Timed timed(const Problem& problem, const Candidate& candidate) {
  const cost::Layout layout = layout_of(problem, candidate);
  const cost::Routing& routing = problem.routing_for(layout.expert);
  const cost::StepClock clock(layout, routing.recorded(), problem.programs);
  return {candidate, cost::step_time(problem.model, layout, problem.machine, problem.practice, routing, clock),
          memory_of(problem, layout)};
}

bool better(const Timed& a, const Timed& b) {
  const auto all = [](const Timed& one) { return std::tuple(one.time.seconds, one.memory.total(), one.candidate); };
  return all(a) < all(b);
}

Cell cell_of(double seconds, double bytes) {
  const auto place = [](double value) { return static_cast<int>(std::floor(std::log2(value) * cells_a_factor_two)); };
  return {place(seconds), place(bytes)};
}

}  // namespace orthant::search
