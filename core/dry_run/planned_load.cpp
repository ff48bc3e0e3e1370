#include "core/dry_run/planned_load.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "router/rules/capacity.h"

namespace orthant {
namespace {

PlannedLoad no_load(const GateConfig& config, std::int64_t choices) {
  const std::size_t experts = static_cast<std::size_t>(config.computing());
  return {std::vector<std::int64_t>(experts, 0), std::vector<std::int64_t>(experts, 0), choices};
}

PlannedLoad balanced(const GateConfig& config, std::int64_t choices) {
  PlannedLoad load = no_load(config, choices);
  const std::int64_t experts = config.experts;
  // Choice c goes to expert c mod E, those that compute nothing included: groups go on where the one before stopped,
  // so that the whole is even too.
  for (std::int64_t begin = 0; begin < choices; begin += config.group_tokens * config.top_k) {
    const std::int64_t group = std::min(config.group_tokens * config.top_k, choices - begin);
    const std::int64_t seats = capacity(config, group / config.top_k);
    for (std::int64_t e = 0; e < config.computing(); ++e) {
      const std::int64_t ahead = ((e - begin) % experts + experts) % experts;  // choices of the group before e's first
      const std::int64_t here = ahead < group ? (group - ahead - 1) / experts + 1 : 0;
      load.kept[e] += std::min(here, seats);
      load.dropped[e] += config.experts_choose ? 0 : here - std::min(here, seats);
    }
  }
  return load;
}

// Choices go to experts one after another, up to a limit each.
class Filling {
 public:
  Filling(PlannedLoad& to, const PlannedRouting& routing, const GateConfig& config)
      : to_(to), routing_(routing), experts_(config.computing()) {}

  // To the own experts, the first of them first: rows that travel in chunks are all of one chunk then. Where a share of
  // the choices is known, it is spread.
  template <class Limit>
  std::int64_t own(std::int64_t choices, Limit limit) {
    const std::int64_t even =
        routing_.load == Load::recorded ? (choices + routing_.count - 1) / routing_.count : choices;
    std::int64_t left = choices;
    for (std::int64_t e = routing_.first; e < routing_.first + routing_.count; ++e) {
      left -= give(e, std::min({left, even, limit(e)}));
    }
    return choices - left;
  }
  // To the others, those of the same places on their ranks first: likewise.
  template <class Limit>
  std::int64_t others(std::int64_t choices, Limit limit) {
    std::int64_t left = choices;
    for (std::int64_t place = 0; place < routing_.count; ++place) {
      for (std::int64_t e = place; e < experts_; e += routing_.count) {
        if (e < routing_.first || e >= routing_.first + routing_.count) {
          left -= give(e, std::min(left, limit(e)));
        }
      }
    }
    return choices - left;
  }

 private:
  std::int64_t give(std::int64_t expert, std::int64_t choices) {
    to_.kept[expert] += choices;
    return choices;
  }

  PlannedLoad& to_;
  const PlannedRouting& routing_;
  std::int64_t experts_;
};

// How many of `choices` may be for the own experts: a token chooses an expert once.
std::int64_t wanted_here(const PlannedRouting& routing, const GateConfig& config, std::int64_t choices) {
  const std::int64_t most = choices / config.top_k * std::min(config.top_k, routing.count);
  if (routing.load == Load::worst) {
    return most;
  }
  return std::min(most, static_cast<std::int64_t>(std::ceil(routing.share * static_cast<double>(choices))));
}

}  // namespace

std::int64_t PlannedLoad::kept_sum() const {
  return std::accumulate(kept.begin(), kept.end(), std::int64_t{0});
}

PlannedLoad planned_load(const PlannedRouting& routing, const GateConfig& config, std::int64_t choices) {
  if (routing.load == Load::balanced) {
    return balanced(config, choices);
  }
  PlannedLoad load = no_load(config, choices);
  Filling fill(load, routing, config);
  for (std::int64_t begin = 0; begin < choices; begin += config.group_tokens * config.top_k) {
    const std::int64_t group = std::min(config.group_tokens * config.top_k, choices - begin);
    const std::int64_t seats = std::min(capacity(config, group / config.top_k), group / config.top_k);
    const auto limit = [&](std::int64_t) { return seats; };
    const std::int64_t here = fill.own(wanted_here(routing, config, group), limit);
    const std::int64_t there = fill.others(group - here, limit);
    load.dropped[routing.first] += config.experts_choose ? 0 : group - here - there;
  }
  return load;
}

PlannedLoad planned_part(const PlannedRouting& routing, const GateConfig& config, std::int64_t choices,
                         const PlannedLoad& seated) {
  const std::int64_t made = std::max<std::int64_t>(seated.choices, 1);
  if (routing.load == Load::balanced) {
    return balanced(config, choices * seated.kept_sum() / made);
  }
  PlannedLoad load = no_load(config, choices);
  Filling fill(load, routing, config);
  const std::int64_t tokens = choices / config.top_k, room = std::min(choices, seated.kept_sum());
  const std::int64_t here = fill.own(std::min(room, wanted_here(routing, config, choices)), [&](std::int64_t e) {
    return std::min(tokens, (seated.kept[e] + routing.sharing - 1) / routing.sharing);
  });
  fill.others(room - here, [&](std::int64_t) { return tokens; });
  return load;
}

}  // namespace orthant
