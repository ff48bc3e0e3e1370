// Which experts a plan assumes that tokens choose: how many rows a rank packs, and so how many it gets.
//
// A peer is assumed to send what the caller would send itself (planning_communicator.h), so that the rows for the
// caller's own experts come in once from every rank that exchanges rows with it.
#pragma once

#include <cstdint>
#include <vector>

#include <orthant/ops.h>

namespace orthant {

enum class Load {
  balanced,  // every expert gets equally many choices
  recorded,  // this rank's experts together get a given share of all choices
  worst      // every token goes to this rank's experts with as many of its choices as capacity and top_k let in
};

struct PlannedRouting {
  Load load = Load::balanced;
  double share = 0;  // recorded
  // This rank's experts. REQUIRES, unless load is balanced: count is above 0 where there are experts.
  std::int64_t first = 0, count = 0;
  // How many of the ranks that exchange rows hold parts of the same sequences: they share the seats of a group.
  std::int64_t sharing = 1;
};

// Choices of one dispatch_plan, for each expert.
struct PlannedLoad {
  std::vector<std::int64_t> kept, dropped;
  std::int64_t choices = 0;  // that were made

  std::int64_t kept_sum() const;
};

// Of `choices` choices, top_k for each token, under the capacity of `config`.
PlannedLoad planned_load(const PlannedRouting& routing, const GateConfig& config, std::int64_t choices);

// Of the tokens that a rank holds, `choices` choices, where seats are decided already: `seated` for whole sequences.
PlannedLoad planned_part(const PlannedRouting& routing, const GateConfig& config, std::int64_t choices,
                         const PlannedLoad& seated);

}  // namespace orthant
