// What keepers leave behind on all ranks, compared: one that shares a group out differently from rank to rank would
// lose or repeat a part of it, and training would go on with wrong numbers.
#pragma once

#include <orthant/plan.h>

#include "core/layers/parameter_store.h"

namespace orthant {

// For every group of this rank that a keeper shares out: all ranks of its sum have buffers of one size, and their
// owners' ranges tile them, each element with one owner. Collective over the world; nothing where no keeper is bound,
// and while planning. Errors: Error naming the plugin, the group and the ranks.
void check_holdings(const ParamStore& store, Plan& plan, Stream& stream);

}  // namespace orthant
