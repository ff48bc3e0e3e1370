#include "apps/search/skew_answers.h"

#include <fmt/format.h>

#include <numeric>

#include "apps/search/space.h"
#include "apps/search/timing.h"

namespace orthant::search {
namespace {

double mean_of(const cost::Routing& routing) {
  double sum = 0, count = 0;
  for (const std::vector<double>& layers : routing.busiest) {
    sum += std::accumulate(layers.begin(), layers.end(), 0.0);
    count += static_cast<double>(layers.size());
  }
  return count > 0 ? sum / count : 1;
}

SkewAnswer answer_of(const Problem& problem, const Candidate& candidate, std::string question,
                     const cost::Routing& routing) {
  const cost::Layout layout = layout_of(problem, candidate);
  const cost::StepClock clock(layout, true, problem.programs);
  Problem asked = problem;
  asked.recorded[candidate.expert] = routing;
  return {std::move(question),
          cost::step_quantiles(problem.model, layout, problem.machine, problem.practice, routing, clock),
          mean_of(routing), 0, memory_of(asked, layout).total() <= problem.memory};
}

}  // namespace

std::vector<SkewAnswer> skew_answers(const Problem& problem, const Candidate& candidate) {
  std::vector<SkewAnswer> answers;
  if (problem.loads.empty()) {
    return answers;
  }
  const int ranks = candidate.expert;
  const cost::Loads& loads = problem.loads;
  answers.push_back(answer_of(problem, candidate, "as recorded", problem.routing_for(ranks)));
  cost::Routing balanced;
  balanced.busiest = {{1.0}};
  answers.push_back(answer_of(problem, candidate, "balanced", balanced));
  if (ranks > 1) {
    answers.push_back(answer_of(problem, candidate, "experts placed by their load",
                                cost::routing_of(loads, cost::evened(loads, ranks), ranks)));
  }
  for (const double factor : {1.0, 1.25, 1.5, 2.0}) {
    double dropped = 0;
    const cost::Loads less = cost::capped(loads, factor, dropped);
    answers.push_back(answer_of(problem, candidate, fmt::format("capacity factor {:g}", factor),
                                cost::routing_of(less, cost::in_order(less, ranks), ranks)));
    answers.back().dropped = dropped;
  }
  for (const std::int64_t size : divisors(problem.model.experts)) {
    Candidate other = candidate;
    other.expert = static_cast<int>(size);
    other.travel = Travel::at_once;
    if (other.expert != ranks && refusal(problem, other).empty()) {
      answers.push_back(
          answer_of(problem, other, fmt::format("expert axis of {}", size), problem.routing_for(other.expert)));
    }
  }
  return answers;
}

}  // namespace orthant::search
