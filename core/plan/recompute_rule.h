// What each pass of a stage computes again: memory.recompute, but for the passes that memory.keep_micro_batches lets
// keep everything (Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022, in its
// appendix). It follows from the settings and the stage's list of instructions alone, so that a plan and a run agree.
#pragma once

#include <set>
#include <span>
#include <utility>

#include <orthant/plan.h>
#include <orthant/seams.h>
#include <orthant/settings.h>
#include <orthant/step_context.h>

namespace orthant {

class RecomputeRule {
 public:
  // REQUIRES: memory.recompute is not "fit"; a program that check_programs accepts.
  RecomputeRule(const MemorySettings& memory, std::span<const Instr> program);
  Recompute of(int chunk, int micro_batch) const {
    return kept_.contains({chunk, micro_batch}) ? Recompute::none : others_;
  }
  int kept() const { return static_cast<int>(kept_.size()); }  // pairs of chunk and micro-batch that keep everything

 private:
  Recompute others_;
  std::set<std::pair<int, int>> kept_;
};

// The most pairs of chunk and micro-batch that are between their forward and their backward at once, on any stage, in
// any step.
// Where so many keep everything, all do. REQUIRES: the plan is frozen.
int most_in_flight(const Plan& plan);

}  // namespace orthant
