// The one rule for gradients.
//
// The loss is scaled once by 1 / (tokens of the global batch that count); from then on gradients are only summed:
// over the ranks that split tokens where a parameter is used, less the axes that split the parameter
// (Plan::sum_members). Never divided by a group's size.
#pragma once

#include "core/layers/parameter_store.h"

namespace orthant {

// Waits for what the keepers have enqueued, and sums on the main stream every group that no keeper has summed. Then
// all gradients are whole.
void finish_gradients(ParamStore& store, const Plan& plan, const HookContext& at);

}  // namespace orthant
