#include "core/train/early_updates.h"

#include <utility>

namespace orthant {

EarlyUpdates::EarlyUpdates(const Plan& plan, GradientNorm& norm, OptimizerStep& optimizer, const HookContext& at)
    : in_backward_(plan.settings().optimizer.in_backward),
      norm_(norm),
      optimizer_(optimizer),
      at_{.stream = at.stream, .step = at.step, .lr = at.lr, .pass = Pass::backward} {}

void EarlyUpdates::complete(ParamGroup& group) {
  const bool sum_is_known = group.sum->size() == 1 || group.sum_done != nullptr;
  if ((in_backward_ || group.tries) && !group.scattered && sum_is_known) {
    completed_.push_back(&group);
  }
}

void EarlyUpdates::layer_begins() {
  finish_begun();
  for (ParamGroup* group : std::exchange(summed_, {})) {
    begin(*group);
  }
  for (ParamGroup* group : std::exchange(completed_, {})) {
    if (group->sum_done != nullptr) {
      summed_.push_back(group);
    } else {
      begin(*group);
    }
  }
}

void EarlyUpdates::finish() {
  layer_begins();
  layer_begins();
  finish_begun();
}

void EarlyUpdates::begin(ParamGroup& group) {
  if (group.sum_done != nullptr && !group.away.grad) {  // else its keeper has waited, on its way elsewhere
    at_.stream.wait(group.sum_done);
  }
  norm_.add(group, at_);
  if (group.tries) {
    optimizer_.attempt(group, at_);
  } else if (&optimizer_.begin(group, at_) == &at_.stream) {
    optimizer_.finish(group, at_);
  } else {
    begun_.push_back(&group);
  }
}

void EarlyUpdates::finish_begun() {
  for (ParamGroup* group : std::exchange(begun_, {})) {
    optimizer_.finish(*group, at_);
  }
}

}  // namespace orthant
