// What the ranks of a stage have in common when a step of each is planned.
#pragma once

#include <memory>
#include <optional>

#include "core/arch/links.h"
#include "core/dry_run/planning.h"
#include "core/dry_run/repetition.h"

namespace orthant {

struct StageView {
  SharedLinks links;  // of the model
  std::optional<ShortStep> shorter;
  Recomputed recomputed;
};

// Of the stage of the plan's rank. REQUIRES: the plan is frozen.
StageView view_of(const Config& config, const Plan& plan, std::int64_t step);

// Of a rank of that stage: the shorter step, or the whole one where there is no shorter. What a rank does in any period
// it does in this step too, so ranks whose steps are alike here are alike.
RankPlan walk_shortest(const Config& config, int rank, std::int64_t step, const Routed& routed, const StageView& stage,
                       PlanEffort* effort);
// The plan of the whole step by that one. It does not say along which axes the groups' members differ (RankPlan::axis).
RankPlan plan_by(const RankPlan& shortest, const Config& config, std::int64_t step, const Routed& routed,
                 const StageView& stage, PlanEffort* effort);

}  // namespace orthant
