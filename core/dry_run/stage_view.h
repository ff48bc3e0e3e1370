// What the ranks of a stage have in common when a step of each is planned.
#pragma once

#include <memory>
#include <optional>

#include "core/arch/parameter_table.h"
#include "core/dry_run/planning.h"
#include "core/dry_run/repetition.h"

namespace orthant {

struct StageView {
  std::shared_ptr<const ParameterTable> parameters;  // of the model
  std::optional<ShortStep> shorter;
  Recomputed recomputed;
};

// Of the stage of the plan's rank. REQUIRES: the plan is frozen.
StageView view_of(const Config& config, const Plan& plan, std::int64_t step);

// Of a rank of that stage. It does not say along which axes the groups' members differ (RankPlan::axis).
RankPlan plan_rank(const Config& config, int rank, std::int64_t step, const Routed& routed, const StageView& stage,
                   PlanEffort* effort);

}  // namespace orthant
