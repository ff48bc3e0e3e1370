#include "apps/search/timing.h"

#include <algorithm>
#include <cmath>

namespace orthant::search {

double most_uneven(const Problem& problem, const cost::Layout& layout) {
  double most = 1;
  for (std::size_t m = 0; m < std::max<std::size_t>(1, problem.routing.load.size()); ++m) {
    most = std::max(most, cost::imbalance(problem.routing, problem.model.experts, layout.expert, static_cast<int>(m)));
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
    clock = std::make_unique<cost::StepClock>(layout, !problem_.routing.load.empty(), problem_.programs);
  }
  return *clock;
}

Timed timed(const Problem& problem, const Candidate& candidate) {
  const cost::Layout layout = layout_of(problem, candidate);
  const cost::StepClock clock(layout, !problem.routing.load.empty(), problem.programs);
  return {candidate, cost::step_time(problem.model, layout, problem.machine, problem.practice, problem.routing, clock),
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
