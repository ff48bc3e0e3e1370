// WrittenRun: which part of the training's state a rank writes into a checkpoint.
//
// Of each element one rank writes the weight and the moments. Where several ranks hold the same elements (a data axis
// without ZeRO, replicas of shards, an axis that leaves a weight whole) they share the work: those elements, one after
// the other, are cut into equal runs, one for each of the ranks. Norms are counted by another rule (Param::counted).
#pragma once

#include <cstdint>
#include <vector>

#include "core/layers/parameter_store.h"

namespace orthant {

// Elements [begin, end) of the group's flat buffers; all of one parameter, within what this rank owns.
struct WrittenRun {
  ParamGroup* group = nullptr;
  const Param* param = nullptr;
  std::int64_t begin = 0, end = 0;
};

// What this rank writes. Ranks tell each other which ranges they own, since keepers choose
// them: collective over `world`.
std::vector<WrittenRun> written_runs(const ParamStore& store, const Plan& plan, Group& world, Stream& stream);

}  // namespace orthant
