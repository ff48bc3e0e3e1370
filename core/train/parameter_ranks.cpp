#include "core/train/parameter_ranks.h"

#include <set>
#include <string>

#include "core/plan/keeper_chain.h"

namespace orthant {

Group* sharing_ranks(Plan& plan, const ParamSpec& spec) {
  if (plan.keepers().empty()) {
    return nullptr;
  }
  // As ParamStore::sum_group: what makes a group new may not depend on the rank.
  std::set<int> stages;
  for (int user : spec.layers) {
    stages.insert(plan.stage_of_layer(user));
  }
  const std::string purpose = stages.size() < 2 ? std::string("whole parameters")
                                                : fmt::format("whole parameters, stages {}", fmt::join(stages, " "));
  return &plan.group(purpose, plan.sum_members(spec));
}

std::vector<AxisId> axes_of_dimension(const Plan& plan, const ParamSpec& spec, int dimension) {
  return spec.split[dimension].has_value() ? plan.axes_of(*spec.split[dimension], spec.region) : std::vector<AxisId>();
}

Group* slicing_ranks(Plan& plan, const std::vector<AxisId>& axes) {
  return axes.empty() ? nullptr : &plan.group("slices of parameters", plan.mesh().members(axes, plan.mesh().rank()));
}

}  // namespace orthant
