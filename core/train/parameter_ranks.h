// Groups of ranks that hold parts of a parameter, for an optimizer that needs more of it than its elements.
//
// They are its own: a keeper's stream may be using those that gradients are summed in. A call may make a group, so
// every rank makes all calls in one order, those for parameters that it does not hold among them.
#pragma once

#include <orthant/param.h>
#include <orthant/plan.h>

#include <vector>

namespace orthant {

// The ranks that a keeper may share the parameter's slice out among: those that its gradient is summed over. Null: no
// keeper, so that nothing is shared out.
Group* sharing_ranks(Plan& plan, const ParamSpec& spec);

// The axes that split this dimension of a parameter; none where nothing does.
std::vector<AxisId> axes_of_dimension(const Plan& plan, const ParamSpec& spec, int dimension);
// The ranks that differ from this one along these axes alone. Null where there are no axes.
Group* slicing_ranks(Plan& plan, const std::vector<AxisId>& axes);

}  // namespace orthant
