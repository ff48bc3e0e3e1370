// The one rule for gradients, and the one gradient norm.
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

// Shows the keepers every group's whole gradient, which they may change. sum_squares f64[1] = the sum of squares of the
// whole model's gradient: every slice counted by its owners among the ranks that hold it, then summed over `model`, the
// ranks that train one model together (Mesh::worker_members). The same bits on each of them, and wherever the gradients
// live.
void whole_gradients(const Tensor& sum_squares, ParamStore& store, const Plan& plan, Group& model,
                     const HookContext& at);

}  // namespace orthant
