#include "core/train/gradient_rule.h"

#include "core/plan/keeper_chain.h"

namespace orthant {

void finish_gradients(ParamStore& store, const Plan& plan, const HookContext& at) {
  plan.keepers().finish_sums(at);
  for (auto& group : store.groups()) {
    if (!group->summed && !group->frozen && group->sum->size() > 1) {
      group->sum->all_reduce(group->grad, ReduceOp::sum, at.stream);
      group->summed = true;
    }
  }
}

}  // namespace orthant
