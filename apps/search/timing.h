// Time and bytes of one layout of a search. Internal to this folder.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "apps/search/search.h"

namespace orthant::search {

// The largest choices of a rank over the mean, in any recorded micro-batch.
double most_uneven(const Problem& problem, const cost::Layout& layout);
cost::StageMemory memory_of(const Problem& problem, const cost::Layout& layout);

// A StepClock for each course that stages take.
class Clocks {
 public:
  explicit Clocks(const Problem& problem) : problem_(problem) {}
  const cost::StepClock& of(const cost::Layout& layout);

 private:
  const Problem& problem_;
  std::map<std::tuple<int, int, std::int64_t, bool>, std::unique_ptr<cost::StepClock>> known_;
};

}  // namespace orthant::search
